"""A RESHAPE between a convolution and its bias moves behind the bias.

    CONV_2D -> RESHAPE -> ADD c          CONV_2D -> ADD c -> RESHAPE

The arithmetic can then fold into the filter (`fuse_after_filter`). Channels must stay the last
dimension.
"""

from __future__ import annotations

from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext
from tflgpu.passes.filters import filter_of


def run(graph: Graph, context: PassContext) -> int:
    """Move every one that nothing else reads."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        affine = context.affine_of(node)
        reshape = None if affine is None else rewriter.producer(node.input(affine.operand))
        if affine is None or reshape is None or not _movable(rewriter, context, reshape, node):
            continue
        source, (result,) = reshape.input(0), node.outputs
        operands = [
            source if i == affine.operand else None if v is None else _as_channels(rewriter, v)
            for i, v in enumerate(node.inputs)
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
        rewriter.count()
    return rewriter.edits


def _movable(rewriter: Rewriter, context: PassContext, reshape: Node, node: Node) -> bool:
    op = context.op(node)
    if op is None or not op.elementwise:
        return False
    if reshape.op != "RESHAPE" or rewriter.sole_use(reshape.outputs[0]) is not node:
        return False
    source = reshape.input(0)
    maker = rewriter.producer(source)
    if filter_of(maker, context) is None or maker is None or not context.is_linear(maker):
        return False
    channels_last = source.shape[-1:] == reshape.outputs[0].shape[-1:]
    return channels_last and rewriter.sole_use(source) is reshape


def _as_channels(rewriter: Rewriter, constant: Value) -> Value:
    """A number per channel, as a vector that broadcasts against any rank."""
    assert constant.data is not None
    return rewriter.const(constant.data.reshape(-1), constant.name)


PASS = Pass("sink_reshapes", run)
