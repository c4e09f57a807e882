"""Nodes that only pass on the elements of an operand are removed, or become a RESHAPE.

x -> SLICE of everything -> y -> f            x -> f
x -> TRANSPOSE of sizes 1 -> y                x -> RESHAPE -> y
x -> SQUEEZE -> RESHAPE -> y                  x -> RESHAPE -> y
x -> an op that transposes -> y               x -> TRANSPOSE -> y
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext


def run(graph: Graph, context: PassContext) -> int:
    """Remove or rewrite every one there is."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        index = _copied_operand(node, context)
        if index is not None:
            _simplify(rewriter, context, node, index)
        else:
            _name_transpose(rewriter, context, node)
    return rewriter.edits


def _copied_operand(node: Node, context: PassContext) -> int | None:
    """The operand whose elements are the result's, in row-major order; None where there is none."""
    op = context.op(node)
    if op is None or op.stateful or len(node.outputs) != 1 or not context.is_linear(node):
        return None
    moves = op.moves(node) if op.moves is not None else None
    if moves is not None and moves.is_identity(node.input(moves.operand).shape):
        index = moves.operand
    else:
        copied = op.copies(node) if op.copies is not None else None
        if copied is None:
            return None
        index = copied
    source, result = node.input(index), node.outputs[0]
    same = source.dtype is result.dtype and source.quant == result.quant
    return index if same and source.elements == result.elements else None


def _simplify(rewriter: Rewriter, context: PassContext, node: Node, index: int) -> None:
    source, result = node.input(index), node.outputs[0]
    if source.shape == result.shape:
        if rewriter.bypass(node, index):
            rewriter.count()
            return
    elif 0 in result.shape:
        return  # a RESHAPE to [0] means a scalar
    before = rewriter.producer(source)
    view = None if before is None else context.op(before)
    first = before is not None and view is not None and view.is_view
    if before is not None and first and _copied_operand(before, context) == 0:
        # Where others read the first view's result it stays, for them.
        if rewriter.sole_use(source) is node:
            node.origins = merged_origins(before, node)
        _make_reshape(rewriter, node, before.input(0))
    elif node.op != "RESHAPE":
        _make_reshape(rewriter, node, source)


def _name_transpose(rewriter: Rewriter, context: PassContext, node: Node) -> None:
    """An op that does what a TRANSPOSE does becomes one, so that it meets others and cancels."""
    op = context.op(node)
    if op is None or op.moves is None or op.stateful or len(node.outputs) != 1:
        return
    moves = op.moves(node) if node.op != "TRANSPOSE" and context.is_linear(node) else None
    if moves is None:
        return
    source, result = node.input(moves.operand), node.outputs[0]
    order = moves.permutation(source.shape, result.shape)
    if order is None or source.dtype is not result.dtype or source.quant != result.quant:
        return
    perm = rewriter.const(np.array(order, np.int32), "perm")
    rewriter.replace([node], "TRANSPOSE", NoAttrs(), [source, perm])
    rewriter.count()


def _make_reshape(rewriter: Rewriter, node: Node, source: Value) -> None:
    rewriter.replace([node], "RESHAPE", ReshapeAttrs(node.outputs[0].shape), [source])
    rewriter.count()


PASS = Pass("remove_noops", run)
