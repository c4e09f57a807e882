"""Estimates how many operations a node does and how many bytes it moves, for ranking and
reports."""

from __future__ import annotations

from math import prod

from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import OpDef
from tflgpu.ops.facets import Work
from tflgpu.ops.unknown import UnknownOp


def estimate(node: Node, op: OpDef | None) -> Work:
    """The work of a node, from its shapes: what its op says; else, with a filter, its
    multiply-adds; else one operation for each element of the largest operand or result. Of an op
    that takes elements of its operands as they are, those that it takes.

    ``op`` is the node's definition, None where there is none.
    """
    if isinstance(node.attrs, UnknownOp):
        op = None  # its functions ask attributes that the node does not have
    said = op.device.work(node) if op is not None and op.device.work is not None else None
    if said is not None:
        return said
    if op is not None and _picks(op):
        return _picked(node)
    kind = None if op is None else op.arithmetic.filter
    weights = None if kind is None else node.optional_input(kind.weights)
    if kind is None or weights is None or len(weights.shape) < 2 or not node.outputs:
        return Work.of(node)
    taps = prod(size for axis, size in enumerate(weights.shape) if axis != kind.out)
    return Work.of(node, 2 * node.outputs[0].elements * taps)


def _picks(op: OpDef) -> bool:
    """Whether the elements of its results are elements of its operands that shapes or indices
    name."""
    moved = op.movement
    return moved.moves is not None or (moved.keeps_values and bool(op.device.checked))


def _picked(node: Node) -> Work:
    """A table of which rows are taken is read as far as there are results."""
    made = sum(_nbytes(v) for v in node.outputs)
    read = sum(min(_nbytes(v), made) for v in node.inputs if v is not None)
    return Work(sum(v.elements for v in node.outputs), made + read)


def _nbytes(value: Value) -> int:
    return value.elements * max(1, value.dtype.itemsize)
