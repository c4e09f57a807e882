"""Estimates how many operations a node does and how many bytes it moves, for ranking and
reports."""

from __future__ import annotations

from math import prod

from tflgpu.ir.graph import Node
from tflgpu.ops.base import OpDef
from tflgpu.ops.facets import Work
from tflgpu.ops.unknown import UnknownOp


def estimate(node: Node, op: OpDef | None) -> Work:
    """The work of a node, from its shapes: what its op says; else, with a filter, its
    multiply-adds; else one operation for each element of the largest operand or result.

    ``op`` is the node's definition, None where there is none.
    """
    if isinstance(node.attrs, UnknownOp):
        op = None  # its functions ask attributes that the node does not have
    said = op.work(node) if op is not None and op.work is not None else None
    if said is not None:
        return said
    kind = None if op is None else op.filter
    weights = None if kind is None else node.optional_input(kind.weights)
    if kind is None or weights is None or len(weights.shape) < 2 or not node.outputs:
        return Work.of(node)
    taps = prod(size for axis, size in enumerate(weights.shape) if axis != kind.out)
    return Work.of(node, 2 * node.outputs[0].elements * taps)
