"""Estimates how long nodes take on the device and on the CPU, from a few figures of each.

A run of nodes takes

    launch + edge x bytes that go in and out + the sum over its nodes of
        step + the longer of (operations x seconds an operation) and (bytes x seconds a byte)

where operations count as `few` for ops that add up a few numbers for each result (a depthwise
convolution), and as `flop` for all others (matrix products). On the device a reinterpretation takes
nothing, and an elementwise node that joins the kernel of its producer only its own operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tflgpu.compiler.machines import Cost, TimeModel
from tflgpu.compiler.work import estimate
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ops.base import OpDef


def costs_of(
    graph: Graph, ops: Mapping[str, OpDef], model: TimeModel, on_device: Collection[int]
) -> dict[int, Cost]:
    """The cost of every node, by ``id(node)``; ``on_device`` has the nodes, by ``id``, that could
    be there."""
    readers = Counter(id(v) for node in graph for v in node.inputs if v is not None)
    readers.update(id(v) for v in graph.outputs)
    makers = {id(v): node for node in graph for v in node.outputs}

    def joins(node: Node, op: OpDef | None) -> bool:
        return (
            op is not None
            and op.elementwise
            and any(
                v is not None
                and readers[id(v)] == 1
                and id(makers.get(id(v))) in on_device
                and not _is_view(ops.get(makers[id(v)].op))
                for v in node.inputs
            )
        )

    found: dict[int, Cost] = {}
    for node in graph:
        op = ops.get(node.op)
        if _is_done_once(node):
            found[id(node)] = Cost(0.0, 0.0)
            continue
        work = estimate(node, op)
        results = sum(v.elements for v in node.outputs)
        host = model.host.seconds(work, results)
        if _is_view(op):
            device, host = 0.0, model.host.step
        elif joins(node, op):
            device = work.flops * model.device.few
        else:
            device = model.device.seconds(work, results)
        found[id(node)] = Cost(device, host)
    return found


def _is_view(op: OpDef | None) -> bool:
    return op is not None and op.movement.is_view


def _is_done_once(node: Node) -> bool:
    """Whether all its operands are constants: DEQUANTIZE of 16-bit weights, above all."""
    return bool(node.inputs) and all(v is None or v.is_const for v in node.inputs)


def edges_of(
    nodes: Sequence[Node], readers: Mapping[int, Collection[int]], leaving: Collection[int]
) -> int:
    """Bytes that nodes which run together read and do not make, and make for others.

    Args:
        nodes: Which ones.
        readers: ``id`` of nodes that read a value, by the value's ``id``.
        leaving: ``id`` of the graph's outputs.
    """
    inside = {id(n) for n in nodes}
    made = {id(v) for n in nodes for v in n.outputs}
    read: dict[int, Value] = {
        id(v): v
        for n in nodes
        for v in n.inputs
        if v is not None and not v.is_const and not v.is_variable and id(v) not in made
    }
    given = [
        v
        for n in nodes
        for v in n.outputs
        if id(v) in leaving or any(r not in inside for r in readers.get(id(v), ()))
    ]
    return sum(v.nbytes for v in (*read.values(), *given))


def readers_of(graph: Graph) -> dict[int, set[int]]:
    """``id`` of the nodes that read each value, by the value's ``id``."""
    found: dict[int, set[int]] = {}
    for node in graph:
        for value in node.inputs:
            if value is not None:
                found.setdefault(id(value), set()).add(id(node))
    return found


def alone(graph: Graph, ops: Mapping[str, OpDef], model: TimeModel) -> float:
    """Estimated seconds of a whole graph on the CPU."""
    if not graph.nodes:
        return 0.0
    costs = costs_of(graph, ops, model, ())
    crossing = edges_of(graph.nodes, readers_of(graph), {id(v) for v in graph.outputs})
    return model.host.launch + model.host.edge * crossing + sum(c.host for c in costs.values())


def told(seconds: float) -> str:
    """In words: "210 us", "1.4 ms", "2.3 s"."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return (
                f"{seconds / size:.0f} {unit}"
                if seconds >= 10 * size
                else (f"{seconds / size:.1f} {unit}")
            )
    return f"{seconds:.3g} s"
