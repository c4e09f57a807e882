"""Checks the graph after a plugin's pass, without relying on what the pass reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import GraphError
from tflgpu.errors.blame import Failed, attempt
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.verify import verify
from tflgpu.ops.base import OpDef, known_operands
from tflgpu.ops.unknown import unknown_reason
from tflgpu.values import frozen


@frozen(eq=False)
class GraphSnapshot:
    """A graph as it was before a pass.

    Attributes:
        nodes: By ``id``: the node, and all that it was.
        values: The same of every value.
        edge: Inputs and outputs, in order.
        origins: Operators of the file that its nodes stood for.
        bare: The ``id`` of the nodes that stood for none.
    """

    nodes: Mapping[int, tuple[Any, ...]]
    values: Mapping[int, tuple[Any, ...]]
    edge: tuple[tuple[Value, ...], tuple[Value, ...]]
    origins: frozenset[int]
    bare: frozenset[int]

    @classmethod
    def of(cls, graph: Graph) -> GraphSnapshot:
        """Look at a graph. What is compared by identity is kept, so that no id is used again."""
        return cls(
            {id(n): (n, *_state(n)) for n in graph.nodes},
            {id(v): (v, *_contents(v)) for v in graph.values.values()},
            (tuple(graph.inputs), tuple(graph.outputs)),
            frozenset(o for n in graph.nodes for o in n.origins),
            frozenset(id(n) for n in graph.nodes if not n.origins),
        )

    def changed(self, graph: Graph) -> list[Node]:
        """Nodes that are new, or not what they were, or whose tensors are not."""
        return [n for n in graph.nodes if not self._same(n)]

    def has(self, value: Value) -> bool:
        """Whether a value is as it was."""
        known = self.values.get(id(value))
        return known is not None and _equal(known[1:], _contents(value))

    def _same(self, node: Node) -> bool:
        known = self.nodes.get(id(node))
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        return (
            known is not None
            and _equal(known[1:], _state(node))
            and all(self.has(v) for v in values)
        )


def _state(node: Node) -> tuple[Any, ...]:
    return (node.op, node.attrs, len(node.inputs), *node.inputs, *node.outputs)


def _contents(value: Value) -> tuple[Any, ...]:
    return (value.shape, value.dtype, value.data, value.quant)


def _equal(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether all are the same, or equal; contents of constants are the same or they are not."""
    return len(before) == len(after) and all(
        a is b or (not isinstance(a, np.ndarray) and attempt(lambda a=a, b=b: a == b) is True)
        for a, b in zip(before, after, strict=True)
    )


def check_edits(graph: Graph, before: GraphSnapshot, name: str, ops: Mapping[str, OpDef]) -> bool:
    """Prune a graph after a plugin's pass, and check all that later stages rely on; gives
    whether it was edited.

    Raises:
        GraphError: a rule is broken; names the pass, the node and the value.
    """

    def fail(message: str) -> None:
        raise GraphError(f"graph {graph.name} after pass {name}: {message}")

    for what, was, now in zip(
        ("inputs", "outputs"), before.edge, (graph.inputs, graph.outputs), strict=True
    ):
        if len(was) != len(now) or any(a is not b for a, b in zip(was, now, strict=True)):
            fail(f"its {what} are not those that it had; they keep their `Value` objects")
        for value in now:
            shape, dtype = before.values[id(value)][1:3]
            if value.shape != shape or value.dtype is not dtype:
                fail(
                    f"{what[:-1]} {value} was {dtype.value}[{','.join(map(str, shape))}]; the "
                    f"graph's {what} keep shape and type"
                )
    for node in graph.nodes:
        if not isinstance(node, Node):
            fail(f"{node!r} is among its nodes")
        stray = [o for o in node.origins if o not in before.origins]
        if stray:
            fail(f"{node.label} stands for operator {stray[0]}, of which there was none")
        if not node.origins and id(node) not in before.bare:
            fail(
                f"{node.label} stands for no operator of the file, so that no report or option "
                "would know of it; what takes nodes' place has their origins "
                "(`ir.rewrite.merged_origins`)"
            )
    for value in graph.values.values():
        shape = value.shape
        if before.has(value):
            continue
        if not isinstance(shape, tuple) or not all(type(d) is int for d in shape):
            fail(f"value %{value.id} has shape {shape!r}, which is no tuple of whole numbers")
        if not isinstance(value.dtype, DType):
            fail(f"value %{value.id} has type {value.dtype!r}")
    known = len(graph.nodes)
    graph.prune()
    verify(graph, f"pass {name}")
    changed = before.changed(graph)
    for node in changed:
        _check_node(node, ops, fail)
    return bool(changed) or known != len(before.nodes) or len(graph.nodes) != known


def _check_node(node: Node, ops: Mapping[str, OpDef], fail: Any) -> None:
    """Check that a node's tensors are as the op's own shape inference says."""
    if unknown_reason(node.attrs) is not None:
        return
    definition = ops.get(node.op)
    if definition is None:
        fail(f"{node.label}: there is no op {node.op}")
        return
    specs = attempt(definition.infer, node.attrs, known_operands(node.inputs))
    if isinstance(specs, Failed):
        fail(f"{node.label} is not one that its op takes: {specs}")
        return
    made = [v.spec for v in node.outputs]
    if list(specs) != made:
        fail(
            f"{node.label} makes {', '.join(map(str, specs))}, and its tensors are "
            f"{', '.join(map(str, made))}"
        )
