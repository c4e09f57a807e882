"""Converts 64-bit indices of nodes to 32 bits, where a device can run the node then.

    i64 -> GATHER              i64 -> NARROW (CPU) -> i32 -> GATHER
    ARG_MAX -> i64 -> CAST     ARG_MAX -> i32 -> CAST

No device stores 64-bit numbers. Where an op says that an operand is indices, or that its results
are positions, 32 bits are enough: nothing that a tensor can have lies beyond them. It is done for a
node that the device refuses as it is and takes so; the CPU keeps what the file has.
"""

from __future__ import annotations

from typing import Any

import attrs

from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.verify import verify
from tflgpu.ops.base import NoAttrs, OpDef
from tflgpu.ops.convert import CastAttrs
from tflgpu.ops.narrow import OP as NARROW
from tflgpu.ops.narrow import narrowed
from tflgpu.ops.unknown import unknown_reason
from tflgpu.passes.scales import inferred

_CAST = "CAST"


def narrow_indices(graph: Graph, target: Target) -> int:
    """Rewrite every such node of a graph; counts them."""
    narrowing = _Narrowing(graph, target)
    for node in list(graph.nodes):
        narrowing.look_at(node)
    if narrowing.edits:
        graph.prune()
        verify(graph, "narrow_indices")
    return narrowing.edits


class _Narrowing:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.edits = 0
        self._twins: dict[int, Value] = {}  # in 32 bits, by the id of the value in 64
        self._equal: set[int] = set()  # values of 64 bits whose twins hold the same numbers

    def look_at(self, node: Node) -> None:
        """Rewrite a node where that takes it to the device."""
        op = self.target.ops.get(node.op)
        if op is None or unknown_reason(node.attrs) is not None or not node.shapes_known:
            return
        operands = self._operands(node, op)
        results = self._results(node, op)
        if not operands and results is None:
            return
        twins = {i: _twin(node.input(i)) for i in operands}
        made = Node(
            node.op,
            node.attrs if results is None else results,
            [twins.get(i, v) for i, v in enumerate(node.inputs)],
            node.outputs if results is None else [_twin(v) for v in node.outputs],
            node.version,
            node.origins,
        )
        if self.target.refusal(node) is None or not self._fits(made, op):
            return
        if self.target.refusal(made) is not None:
            return
        for i in operands:
            node.inputs[i] = self._narrow(node.input(i), node)
        if results is not None:
            self._widen(node, results)
        node.source = None  # no file has it so
        self.edits += 1

    def _operands(self, node: Node, op: OpDef) -> list[int]:
        """Positions of operands that may have 32 bits."""
        if node.op == _CAST and id(node.input(0)) in self._equal:
            return [0]
        found = [i for i in op.contents.indices if _is_wide(node.optional_input(i))]
        return found if any(not node.input(i).is_const for i in found) else []

    def _results(self, node: Node, op: OpDef) -> Any:
        """The attributes with which its results have 32 bits; None where they need not or
        cannot."""
        if not op.contents.positions or not all(_is_wide(v) for v in node.outputs):
            return None
        return attrs.evolve(node.attrs, **{op.contents.positions: DType.I32})

    def _fits(self, made: Node, op: OpDef) -> bool:
        return inferred(op, made, made.inputs) == [v.spec for v in made.outputs]

    def _narrow(self, value: Value, before: Node) -> Value:
        if id(value) not in self._twins:
            maker = self.graph.producer(value)
            if maker is not None and maker.op == _CAST and maker.input(0).dtype is DType.I32:
                twin = maker.input(0)
                self._equal.add(id(value))
            elif value.data is not None:
                twin = self.graph.add_const(narrowed(value.data), name=value.name)
            else:
                twin = self.graph.add_value(value.shape, DType.I32, name=f"{value.name} in 32 bits")
                self.graph.add_node(NARROW, NoAttrs(), [value], [twin], before=before)
            self._twins[id(value)] = twin
        return self._twins[id(value)]

    def _widen(self, node: Node, attributes: Any) -> None:
        node.attrs = attributes
        after = self.graph.nodes.index(node) + 1
        for i, value in enumerate(node.outputs):
            twin = self.graph.add_value(value.shape, DType.I32, name=f"{value.name} in 32 bits")
            node.outputs[i] = self._twins[id(value)] = twin
            self._equal.add(id(value))
            self.graph.nodes.insert(after, Node(_CAST, CastAttrs(DType.I64), [twin], [value]))


def _is_wide(value: Value | None) -> bool:
    return value is not None and value.dtype is DType.I64


def _twin(value: Value) -> Value:
    """A value of 32 bits in no graph, to ask about."""
    data = None if value.data is None else narrowed(value.data)
    return Value(value.id, value.name, value.shape, DType.I32, data)
