"""Rules that every graph must keep, checked between passes so that a broken pass is named."""

from __future__ import annotations

from tflgpu.errors import GraphError
from tflgpu.ir.graph import Graph


def verify(graph: Graph, after: str = "building") -> None:
    """Check a graph.

    Raises:
        GraphError: a rule is broken; the message names the node, the value and ``after``.
    """

    def fail(message: str) -> None:
        raise GraphError(f"graph {graph.name} after {after}: {message}")

    known = {id(v) for v in graph.values.values()}
    ready: set[int] = set()
    for key, value in graph.values.items():
        if key != value.id:
            fail(f"value {value} is stored under id {key}")
        if any(d < 0 for d in value.shape):
            fail(f"value {value} has a negative dimension")
        held = value.contents
        if held is not None and (
            held.shape != value.shape or (value.dtype.has_numpy and held.dtype != value.dtype.numpy)
        ):
            fail(f"constant {value} holds {held.dtype}{list(held.shape)}")
        if value.is_const or value.is_variable:
            ready.add(id(value))
    for value in graph.inputs:
        if id(value) not in known:
            fail(f"input {value} is not in the value table")
        ready.add(id(value))
    made: set[int] = set()
    for node in graph.nodes:
        for i, source in enumerate(node.inputs):
            if source is None:
                continue
            if id(source) not in known:
                fail(f"{node.label}: input {i} {source} is not in the value table")
            if id(source) not in ready:
                fail(f"{node.label}: input {i} {source} is read before it is made")
        for out in node.outputs:
            if id(out) not in known:
                fail(f"{node.label}: output {out} is not in the value table")
            if id(out) in made or out.is_const or graph.is_input(out):
                fail(f"{node.label}: output {out} is made twice")
            made.add(id(out))
            ready.add(id(out))
    for value in graph.outputs:
        if id(value) not in ready:
            fail(f"output {value} is never made")
