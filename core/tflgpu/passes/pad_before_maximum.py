"""A border of zeros around what is never negative moves into the maximum that reads it.

    RELU -> PAD -> MAX_POOL_2D {padding=VALID}          RELU -> MAX_POOL_2D {pads=...}

A maximum leaves out what lies outside the image. No zero is larger than what a window sees of the
image, if it sees anything of it.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import Activation, Padding
from tflgpu.passes.base import Pass, PassContext, per_node
from tflgpu.passes.merge_padding import image_border

_NEVER_NEGATIVE = (Activation.RELU, Activation.RELU6)


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Merge one whose operand nothing else reads."""
    if node.op != "MAX_POOL_2D" or node.attrs.padding is not Padding.VALID or node.attrs.pads:
        return False
    border = rewriter.producer(node.input(0), "PAD", "PADV2")
    if border is None or not is_plain(border) or rewriter.sole_use(node.input(0)) is not node:
        return False
    pads, maker = image_border(border), rewriter.producer(border.input(0))
    if pads is None or maker is None or 0 in (*border.input(0).shape, *node.outputs[0].shape):
        return False
    made_by = context.op(maker)
    computes = Activation.NONE if made_by is None else made_by.arithmetic.computes
    if not {context.activation_of(maker), computes} & {*_NEVER_NEGATIVE}:
        return False
    if max(pads.top, pads.bottom) >= node.attrs.filter_height:
        return False
    if max(pads.left, pads.right) >= node.attrs.filter_width:
        return False
    node.origins = merged_origins(border, node)
    rewriter.set_input(node, 0, border.input(0))
    rewriter.evolve(node, pads=pads)
    return True


PASS = Pass("pad_before_maximum", per_node(_rewrite), phase=20)
