"""Arithmetic with a constant per channel, before a convolution, moves into its weights and bias.

    x -> MUL c -> CONV_2D(w, b) -> y          x -> CONV_2D(w * c, b) -> y
    x -> ADD c -> CONV_2D(w, b) -> y          x -> CONV_2D(w, b + sum(w * c)) -> y

What is added can move only where no tap sees padding, which stays zero. So for SUB and DIV, and
before DEPTHWISE_CONV_2D and FULLY_CONNECTED. A RESHAPE between them may move rows, not channels.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.facets import Filter, Pads
from tflgpu.passes.base import Pass, PassContext, per_node
from tflgpu.passes.filters import bias_of, filter_of, set_filter


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fold one that only a convolution reads, perhaps as a view with the same channels."""
    affine = context.affine_of(node)
    if affine is None or not affine.is_finite or not context.is_linear(node):
        return False
    made = node.outputs[0]
    view = rewriter.sole_use(made)
    if view is not None and context.ops[view.op].movement.is_view:
        made = view.outputs[0] if view.outputs[0].shape[-1:] == made.shape[-1:] else made
    reader = rewriter.sole_use(made)
    kind = filter_of(reader, context)
    if reader is None or kind is None or kind.spread is None:
        return False
    if reader.input(kind.source) is not made:
        return False
    channels = made.shape[-1]
    shifts = affine.shifts
    per_weight = kind.spread(reader.const(kind.weights), channels)
    if per_weight is None or (shifts and _sees_padding(reader, kind)):
        return False
    weights = reader.const(kind.weights).astype(np.float64)
    bias = None
    if shifts:
        others = tuple(a for a in range(weights.ndim) if a != kind.out)
        moved = (weights * per_weight(affine.shift)).sum(others)
        bias = bias_of(reader, kind) + moved
    scaled = weights * per_weight(affine.scale) if affine.scales else None
    if not set_filter(rewriter, reader, kind, scaled, bias, context):
        return False
    reader.origins = merged_origins(node, reader)
    rewriter.replace_uses(node.outputs[0], node.input(affine.operand))
    rewriter.remove(node)
    return True


def _sees_padding(node: Node, kind: Filter) -> bool:
    return kind.zeros is None or kind.zeros(node) != Pads()


PASS = Pass("fuse_before_filter", per_node(_rewrite), phase=20)
