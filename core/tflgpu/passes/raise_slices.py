"""What a model drops of the rows of a tensor is not computed.

    x [1, 197, c] -> FULLY_CONNECTED -> ADD(x, .) -> STRIDED_SLICE [:, :1] -> y
    x -> SLICE -> s, FULLY_CONNECTED(s) -> ADD(s, .) -> y

A classifier looks at one token of its last layer. A slice moves before what makes each row, along
the last axis, of the same row of its operands, until it meets what does not, or what others read.
Only where it takes at most half of the rows: of what takes more, little would be saved.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.moves import strides_of
from tflgpu.ops.reduce import reduced_axes
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext, per_node

#: Where a box begins, and its sizes.
_Box = tuple[tuple[int, ...], tuple[int, ...]]


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Move one before what makes its operand."""
    box = _box_of(context, node)
    maker = rewriter.producer(node.input(0)) if box is not None else None
    if box is None or maker is None or rewriter.sole_use(node.input(0)) is not node:
        return False
    cut = _rows_of(context, maker)
    if not cut:
        return False
    source, result = node.input(0), node.outputs[0]
    operands = [
        value and (_rows(rewriter, value, source.shape, box, node) if at in cut else value)
        for at, value in enumerate(maker.inputs)
    ]
    spec, version = (box[1], source.dtype, source.name + "/rows"), maker.version
    made = rewriter.result_of(maker.op, maker.attrs, operands, spec, before=maker, version=version)
    if made.shape == result.shape and not rewriter.is_output(result):
        rewriter.remove(node)
        rewriter.replace_uses(result, made)
    else:
        rewriter.replace([node], "RESHAPE", ReshapeAttrs(result.shape), [made])
    rewriter.remove(maker)
    return True


def _box_of(context: PassContext, node: Node) -> _Box | None:
    """What a node takes of the rows of its operand, where it does nothing else and leaves out at
    least half."""
    op = context.op(node)
    moves = None if op is None or op.movement.moves is None else op.movement.moves(node)
    if moves is None or moves.operand or len(node.outputs) != 1:
        return None
    shape = node.input(0).shape
    if 0 in (len(shape), *shape) or moves.strides != strides_of(shape):
        return None
    begins, rest = [], moves.offset
    for step in moves.strides:
        begins.append(rest // step)
        rest %= step
    whole = moves.sizes[-1:] == shape[-1:] and not begins[-1]
    few = 2 * math.prod(moves.sizes) <= math.prod(shape)
    return (tuple(begins), moves.sizes) if whole and few else None


def _rows_of(context: PassContext, node: Node) -> Collection[int]:
    """The operands of whose rows a node makes its own, each of the same of them alone."""
    op, (result, *others) = context.op(node), node.outputs
    values = [v for v in node.inputs if v is not None]
    if op is None or op.owner or others or any(v.is_variable for v in values):
        return ()
    if any(v.quant is not None for v in (result, *values)) or not result.dtype.is_float:
        return ()
    if op.is_elementwise(node):
        known = all(v.contents is None or v.data is not None for v in values)
        return range(len(node.inputs)) if known else ()
    x = node.input(0)
    alone = x.shape[:-1] == result.shape[:-1] and all(v.is_const for v in values[1:])
    if node.op == "MEAN_STDDEV_NORMALIZATION":
        alone = reduced_axes(node.op, node.attrs.axes, len(x.shape)) == (len(x.shape) - 1,)
    elif node.op not in ("FULLY_CONNECTED", "RMS_NORMALIZATION"):
        alone = False
    return (0,) if alone else ()


def _rows(rewriter: Rewriter, value: Value, shape: Shape, box: _Box, node: Node) -> Value:
    """Of an operand that is broadcast to a result of a shape: the rows that a box of it needs."""
    behind = len(shape) - len(value.shape)
    places = list(zip(value.shape, box[0][behind:], box[1][behind:], strict=True))[:-1]
    begins = (*(0 if n == 1 else at for n, at, _ in places), 0)
    sizes = (*(min(n, size) for n, _, size in places), *value.shape[-1:])
    if sizes == value.shape:
        return value
    if value.data is not None:
        where = tuple(slice(at, at + n) for at, n in zip(begins, sizes, strict=True))
        return rewriter.const(np.ascontiguousarray(value.data[where]), value.name)
    uses = rewriter.uses(value)
    for use in uses:
        given = [v.data for v in use.inputs[1:] if v is not None and v.data is not None]
        if use.op == "SLICE" and np.array_equal(given, [begins, sizes]):
            return use.outputs[0]
    spec = sizes, value.dtype, value.name + "/rows"
    operands = [value, *(rewriter.const(np.array(each, np.int32)) for each in (begins, sizes))]
    first = next(each for each in rewriter.graph.nodes if any(each is use for use in uses))
    return rewriter.result_of(
        "SLICE", NoAttrs(), operands, spec, before=first, origins=node.origins
    )


PASS = Pass("raise_slices", per_node(_rewrite), phase=25)
