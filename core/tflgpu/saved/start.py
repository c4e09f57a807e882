"""`Start`: what a later process needs of a model besides its bytes: the compiled parts, and what
outlives the graph."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tflgpu.compiler.parts import Compiled, Part
from tflgpu.compiler.report import DelegationReport
from tflgpu.ir.graph import Graph, Shape, Value
from tflgpu.values import frozen


@frozen(eq=False)
class Start:
    """The compiled form of a model's file, without its graph.

    Attributes:
        compiled: The compiled graph.
        report: Where its operators run, without the device and what is known only when it is
            loaded.
        shapes: Of all tensors of the graph, by index.
        edge: Its inputs, outputs and variables.
        warnings: What is wrong with the model but does no harm.
    """

    compiled: Compiled
    report: DelegationReport
    shapes: Mapping[int, Shape]
    edge: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    def lean(self) -> Start:
        """A copy without the graph: enough to load the plans. It lacks the nodes that became
        kernels, with their options, costs and constants; where these are needed, the model's file
        is compiled again."""
        parts = tuple(_lean(part) for part in self.compiled.parts)
        whole = self.compiled.graph
        nodes = [node for part in parts for node in part.nodes]
        variables = [value for value in whole.values.values() if value.is_variable]
        edges = [each for part in parts for each in (*part.inputs, *part.outputs)]
        of_nodes = [
            each for node in nodes for each in (*node.inputs, *node.outputs) if each is not None
        ]
        named: list[Value] = [*whole.inputs, *whole.outputs, *variables, *edges, *of_nodes]
        graph = attrs.evolve(whole, nodes=nodes, values={value.id: value for value in named})
        return attrs.evolve(self, compiled=attrs.evolve(self.compiled, graph=graph, parts=parts))


def _lean(part: Part) -> Part:
    # What state a part has is asked of its nodes.
    if part.plan is None or part.states:
        return part
    return attrs.evolve(part, nodes=(), costs=())


def start_of(
    graph: Graph, compiled: Compiled, report: DelegationReport, warnings: tuple[str, ...]
) -> Start:
    """A start of what was compiled just now; ``graph`` is the file's."""
    variables = [v for v in graph.values.values() if v.is_variable]
    edge = dict.fromkeys(v.id for v in (*graph.inputs, *graph.outputs, *variables))
    shapes = {v.id: v.shape for v in graph.values.values()}
    return Start(compiled, report, shapes, tuple(edge), warnings)
