"""A RESHAPE between a convolution and its bias, or other elementwise nodes, moves behind them.

    CONV_2D -> RESHAPE -> ADD c          CONV_2D -> ADD c -> RESHAPE
    CONV_2D -> RESHAPE -> GELU           CONV_2D -> GELU -> RESHAPE
    CONV_2D -> RESHAPE -> ADD x          CONV_2D -> ADD RESHAPE(x) -> RESHAPE

The arithmetic can then fold into the filter (`fuse_after_filter`), and the rest is part of the
store that makes its operand; Keras has a RESHAPE on either side of a dense layer of sequences.
Channels must stay the last dimension. Another operand, x, is only reshaped where others read it too
(a residual's input): no RESHAPE goes there and back.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, per_node
from tflgpu.passes.context import PassContext
from tflgpu.passes.filters import filter_of

#: Elementwise nodes between a filter and a RESHAPE: a bias, a scale, an activation, some more.
_FAR = 8


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Move one that nothing else reads."""
    at = _movable(rewriter, context, node)
    reshape = None if at is None else rewriter.producer(node.input(at))
    if reshape is None:
        return False
    source, (result,) = reshape.input(0), node.outputs
    operands = [
        source if i == at else other and _reshaped(rewriter, other, source, node)
        for i, other in enumerate(node.inputs)
    ]
    value = rewriter.value(source.shape, result.dtype, result.name + "/source")
    op, attributes, origins, version = node.op, node.attrs, node.origins, node.version
    after = rewriter.replace([node], "RESHAPE", ReshapeAttrs(result.shape), [])
    after.origins = reshape.origins
    rewriter.insert(
        op, attributes, operands, [value], before=after, origins=origins, version=version
    )
    rewriter.set_input(after, 0, value)
    rewriter.remove(reshape)
    return True


def _movable(rewriter: Rewriter, context: PassContext, node: Node) -> int | None:
    """The operand of ``node`` whose RESHAPE may go behind it; None where there is none."""
    op = context.op(node)
    if op is None or not op.is_elementwise(node) or len(node.outputs) != 1:
        return None
    result = node.outputs[0]
    for at, value in enumerate(node.inputs):
        reshape = rewriter.producer(value, "RESHAPE")
        if value is None or reshape is None or rewriter.sole_use(value) is not node:
            continue
        if value.shape != result.shape or value.dtype is not result.dtype:
            continue  # what whole numbers or booleans a node makes, a device might not reshape
        if not _behind_filter(rewriter, context, reshape):
            continue
        others = [v for i, v in enumerate(node.inputs) if i != at and v is not None]
        if all(_fits(rewriter, other, value) for other in others):
            return at
    return None


def _behind_filter(rewriter: Rewriter, context: PassContext, reshape: Node) -> bool:
    """Whether it keeps the channels of what a filter makes, or elementwise nodes after a filter."""
    value = reshape.input(0)
    if value.shape[-1:] != reshape.outputs[0].shape[-1:] or rewriter.sole_use(value) is not reshape:
        return False
    maker = rewriter.producer(value)
    for _ in range(_FAR):
        if maker is None or filter_of(maker, context) is not None:
            break
        op = context.op(maker)
        own = [v for v in maker.inputs if v is not None and v.shape == value.shape]
        own = [v for v in own if rewriter.sole_use(v) is maker]
        if op is None or not op.is_elementwise(maker) or len(own) != 1:
            return False
        maker = rewriter.producer(own[0])
    return filter_of(maker, context) is not None


def _fits(rewriter: Rewriter, other: Value, value: Value) -> bool:
    """Whether another operand can be read beside what ``value`` was reshaped from."""
    if other.data is not None:
        return other.elements == 1 or other.elements == (other.shape or (0,))[-1] == value.shape[-1]
    return other.shape == value.shape and rewriter.sole_use(other) is None


def _reshaped(rewriter: Rewriter, other: Value, source: Value, node: Node) -> Value:
    """The other operand of ``node`` after the RESHAPE has moved: a constant of another shape than
    its result's as a vector, which broadcasts against any rank; anything else in the source's
    shape."""
    if other.data is not None:
        # Not all elementwise ops broadcast: what had the result's shape has it still.
        whole = other.shape == node.outputs[0].shape
        return rewriter.const(other.data.reshape(source.shape if whole else -1), other.name)
    value = rewriter.value(source.shape, other.dtype, other.name + "/reshaped")
    attributes = ReshapeAttrs(source.shape)
    rewriter.insert("RESHAPE", attributes, [other], [value], before=node, origins=node.origins)
    return value


PASS = Pass("sink_reshapes", per_node(_rewrite))
