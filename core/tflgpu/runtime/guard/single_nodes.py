"""Runs every node of a graph by itself on the device, with operands from the host.

    x -> SQUARE -> s -> SUM -> y        x' -> SQUARE -> s"        s' -> SUM -> y"

So an error that a node makes is told from one that it was handed, in one run for all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from tflgpu.compiler.compile import halved_in, plan_of
from tflgpu.compiler.parts import Compiled, Part
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.precision import Precision


@attrs.frozen(eq=False)
class Single:
    """A node by itself.

    Attributes:
        node: As it is in the whole graph.
        twin: As it is by itself; its results belong to those of ``node`` one by one.
        rounded: Its operands that it gets in 16 bits, though they are f32.
    """

    node: Node
    twin: Node
    rounded: tuple[Value, ...]


@attrs.frozen(eq=False)
class SingleNodes:
    """Nodes side by side.

    Attributes:
        graph: All of them; its inputs are all operands, and its outputs all results.
        singles: One for each node.
        feeds: By the id of an input of ``graph``: the value that it stands for in the whole graph,
            and whether it is rounded to 16 bits.
        halved: The ids of the whole graph's values that the device keeps in 16 bits.
    """

    graph: Graph
    singles: tuple[Single, ...]
    feeds: Mapping[int, tuple[Value, bool]]
    halved: frozenset[int]

    def compiled(self, target: Target) -> Compiled:
        """The graph compiled for a device, as one part.

        Raises:
            KernelError: a generator broke a rule of the language, or a limit of the device.
        """
        nodes, edges = tuple(self.graph.nodes), (self.graph.inputs, self.graph.outputs)
        inputs, outputs = map(tuple, edges)
        plan = None if target.rules is None else plan_of(nodes, inputs, outputs, target)
        return Compiled(self.graph, (Part(nodes, True, inputs, outputs, plan=plan),), ())


def take_apart(compiled: Compiled, target: Target) -> SingleNodes:
    """The nodes that run on the device, side by side.

    Raises:
        KernelError: as `SingleNodes.compiled`.
    """
    halved = frozenset[int]().union(*(halved_in(part, target) for part in compiled.delegated))
    graph = Graph("apart")
    feeds: dict[int, tuple[Value, bool]] = {}
    inputs: dict[tuple[int, bool], Value] = {}
    singles = []

    def add(value: Value) -> Value:
        made = attrs.evolve(value, id=graph.next_id)
        graph.values[made.id] = made
        graph.next_id += 1
        return made

    for node in (n for part in compiled.delegated for n in part.nodes):
        reads_halves = target.rules is not None and target.site_of(node).precision is Precision.F16
        operands: list[Value | None] = []
        rounded = []
        for value in node.inputs:
            if value is None or value.is_const:
                operands.append(None if value is None else add(value))
                continue
            halves = value.dtype is DType.F32 and (reads_halves or value.id in halved)
            key = (value.id, halves)
            if key not in inputs:
                inputs[key] = add(value)
                feeds[inputs[key].id] = (value, halves)
            operands.append(inputs[key])
            if halves:
                rounded.append(value)
        results = [add(value) for value in node.outputs]
        twin = Node(node.op, node.attrs, operands, results, node.version, node.origins, node.source)
        graph.nodes.append(twin)
        graph.outputs += results
        singles.append(Single(node, twin, tuple(rounded)))
    graph.inputs += inputs.values()
    return SingleNodes(graph, tuple(singles), feeds, halved)


def in_16_bits(array: Array) -> Array:
    """f32 numbers after they were stored as f16."""
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(np.float16).astype(array.dtype))
