"""ATTENTION reads queries, keys and values where the layer that made them left them.

    FULLY_CONNECTED [b, t, 3 * n * h] -> RESHAPE [b, t, 3, n, h] -> TRANSPOSE -> SLICE, SLICE, SLICE
    FULLY_CONNECTED [b, t, 3 * n * h] -> RESHAPE [b, t, 3, n, h]

Moves between whole rows, of the numbers of a head, are composed as maps of indices; the kernel
takes the steps of a row's item, head and token.
"""

from __future__ import annotations

import attrs

from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.attention import NAME, PackedRows
from tflgpu.ops.moves import Moves, composed, merged, reordered, strides_of
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Read what is behind the moves of each operand."""
    rows = list(node.attrs.rows)
    passed: list[Node] = []
    for at in range(3):
        if rows[at] is None and not (at == 2 and node.attrs.tokens_last):
            found = _rows(rewriter, context, node.input(at))
            if found is not None:
                source, rows[at], moved = found
                rewriter.set_input(node, at, source)
                passed += moved
    if not passed:
        return False
    node.origins = merged_origins(*passed, node)
    rewriter.evolve(node, rows=tuple(rows))
    return True


def _rows(
    rewriter: Rewriter, context: PassContext, value: Value
) -> tuple[Value, PackedRows, list[Node]] | None:
    """The first value in which all rows of ``value`` lie, where they are there, and the nodes in
    between."""
    moves, source, found = reordered(0, value.shape, range(4)), value, None
    passed: list[Node] = []
    while (node := rewriter.producer(source)) is not None:
        op = context.op(node)
        each = None if op is None or op.movement.moves is None else op.movement.moves(node)
        whole = None if each is None or each.operand else composed(each, moves)
        if whole is None or not _only_moves(context, node):
            break
        moves, source = whole, node.input(0)
        passed = [node, *passed]
        rows = _as_rows(moves, value, source)
        if rows is not None and any(not _is_view(context, n) for n in passed):
            found = source, rows, passed
    return found


def _only_moves(context: PassContext, node: Node) -> bool:
    source, result = node.input(0), node.outputs[0]
    same = source.dtype is result.dtype and source.quant is result.quant is None
    return same and not source.is_const and len(node.outputs) == 1 and context.is_linear(node)


def _is_view(context: PassContext, node: Node) -> bool:
    op = context.op(node)
    return op is not None and op.movement.is_view


def _as_rows(moves: Moves, value: Value, source: Value) -> PackedRows | None:
    """What ``value`` is of ``source``, as rows; None where some row is taken apart."""
    channels = value.shape[-1]
    if source.shape[-1:] != (channels,) or moves.offset % channels:
        return None
    steps: list[int] = []
    for size, far in zip(value.shape[:3], strides_of(value.shape), strict=False):
        along = composed(attrs.evolve(moves, offset=0), Moves(0, (size,), (far,)))
        if along is None or len(along.sizes) > 1:
            return None
        steps += along.strides or (0,)
    regular = Moves(0, value.shape, (*steps, 1), moves.offset)
    if merged(regular) != moves or any(step % channels or step < 0 for step in steps):
        return None
    i, j, k = (step // channels for step in steps)
    return PackedRows(value.shape, moves.offset // channels, (i, j, k))


PASS = Pass("read_rows", per_node(_rewrite, NAME), phase=40)
