"""All that a start needs of a model besides its bytes: what it was compiled to, and what of its graph
outlives the building of a session."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.report import DelegationReport
from tflgpu.ir.graph import Graph, Shape


@attrs.frozen(eq=False)
class Start:
    """What becomes of a model's file.

    Attributes:
        compiled: The compiled graph.
        report: Where its operators run, without the device and what is known only when it is loaded.
        shapes: Of all tensors of the graph, by index.
        edge: Its inputs, outputs and variables.
        warnings: What is wrong with the model but does no harm.
    """

    compiled: Compiled
    report: DelegationReport
    shapes: Mapping[int, Shape]
    edge: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def start_of(
    graph: Graph, compiled: Compiled, report: DelegationReport, warnings: tuple[str, ...]
) -> Start:
    """A start of what was compiled just now; ``graph`` is the file's."""
    variables = [v for v in graph.values.values() if v.is_variable]
    edge = dict.fromkeys(v.id for v in (*graph.inputs, *graph.outputs, *variables))
    shapes = {v.id: v.shape for v in graph.values.values()}
    return Start(compiled, report, shapes, tuple(edge), warnings)
