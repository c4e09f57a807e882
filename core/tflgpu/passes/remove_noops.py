"""Nodes that only pass on the elements of an operand are removed, or become a RESHAPE.

x -> SLICE of everything -> y -> f            x -> f
x -> TRANSPOSE of sizes 1 -> y                x -> RESHAPE -> y
x -> SQUEEZE -> RESHAPE -> y                  x -> RESHAPE -> y
x -> an op that transposes -> y               x -> TRANSPOSE -> y
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Remove or rewrite one."""
    index = _copied_operand(node, context)
    if index is None:
        return _name_transpose(rewriter, context, node)
    return _simplify(rewriter, context, node, index)


def _copied_operand(node: Node, context: PassContext) -> int | None:
    """The operand whose elements are the result's, in row-major order; None where there is none."""
    op = context.op(node)
    if op is None or op.state is not None or len(node.outputs) != 1 or not context.is_linear(node):
        return None
    moves = op.movement.moves(node) if op.movement.moves is not None else None
    if moves is not None and moves.is_identity(node.input(moves.operand).shape):
        index = moves.operand
    else:
        copied = op.movement.copies(node) if op.movement.copies is not None else None
        if copied is None:
            return None
        index = copied
    source, result = node.input(index), node.outputs[0]
    same = source.dtype is result.dtype and source.quant == result.quant
    return index if same and source.elements == result.elements else None


def _simplify(rewriter: Rewriter, context: PassContext, node: Node, index: int) -> bool:
    source, result = node.input(index), node.outputs[0]
    if source.shape == result.shape:
        if rewriter.bypass(node, index):
            return True
    elif 0 in result.shape:
        return False  # a RESHAPE to [0] means a scalar
    before = rewriter.producer(source)
    view = None if before is None else context.op(before)
    first = before is not None and view is not None and view.movement.is_view
    if before is not None and first and _copied_operand(before, context) == 0:
        # Where others read the first view's result it stays, for them.
        if rewriter.sole_use(source) is node:
            node.origins = merged_origins(before, node)
        source = before.input(0)
    elif node.op == "RESHAPE":
        return False
    rewriter.replace([node], "RESHAPE", ReshapeAttrs(result.shape), [source])
    return True


def _name_transpose(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """An op that does what a TRANSPOSE does becomes one, so that it meets others and cancels."""
    op = context.op(node)
    if op is None or op.movement.moves is None or op.state is not None or len(node.outputs) != 1:
        return False
    moves = op.movement.moves(node) if node.op != "TRANSPOSE" and context.is_linear(node) else None
    if moves is None:
        return False
    source, result = node.input(moves.operand), node.outputs[0]
    order = moves.permutation(source.shape, result.shape)
    if order is None or source.dtype is not result.dtype or source.quant != result.quant:
        return False
    perm = rewriter.const(np.array(order, np.int32), "perm")
    rewriter.replace([node], "TRANSPOSE", NoAttrs(), [source, perm])
    return True


PASS = Pass("remove_noops", per_node(_rewrite))
