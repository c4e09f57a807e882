"""Arithmetic with a constant per channel, after a convolution, moves into its weights and bias.

    CONV_2D(x, w, b) -> MUL c -> y          CONV_2D(x, w * c, b * c) -> y
    CONV_2D(x, w, b) -> ADD c -> y          CONV_2D(x, w, b + c) -> y

SUB and DIV likewise, and so after DEPTHWISE_CONV_2D, transposed convolutions and
FULLY_CONNECTED: this undoes batch normalization and unfused biases.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.passes.base import Pass, PassContext, per_node
from tflgpu.passes.filters import along, bias_of, filter_of, set_filter


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fold one whose operand nothing else reads."""
    affine = context.affine_of(node)
    if affine is None or not affine.is_finite:
        return False
    source = node.input(affine.operand)
    maker = rewriter.producer(source)
    kind = filter_of(maker, context)
    if maker is None or kind is None or not context.is_linear(maker):
        return False
    if len(maker.outputs) != 1 or rewriter.sole_use(source) is not node:
        return False
    field = "" if context.is_linear(node) else context.ops[maker.op].arithmetic.activation_field
    if not field and not context.is_linear(node):
        return False  # the filter's op takes no activation
    old = maker.const(kind.weights)
    scale = along(kind.out, old.ndim, affine.scale)
    weights = None if not affine.scales else old * scale
    bias = bias_of(maker, kind) * affine.scale + affine.shift
    absent = maker.optional_input(kind.bias) is None
    needed = None if absent and not bias.any() else bias
    if not set_filter(rewriter, maker, kind, weights, needed, context):
        return False
    if field:
        rewriter.evolve(maker, **{field: context.activation_of(node)})
    rewriter.absorb(maker, node)
    return True


PASS = Pass("fuse_after_filter", per_node(_rewrite))
