"""Arithmetic with a constant per channel, before a convolution, moves into its weights and bias.

    x -> MUL c -> CONV_2D(w, b) -> y          x -> CONV_2D(w * c, b) -> y
    x -> ADD c -> CONV_2D(w, b) -> y          x -> CONV_2D(w, b + sum(w * c)) -> y

What is added can move only where no tap sees padding, which stays zero. So for SUB and DIV, and
before DEPTHWISE_CONV_2D and FULLY_CONNECTED.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.windows import conv_window
from tflgpu.passes.base import Pass
from tflgpu.passes.filters import along, bias_of, filter_of, set_filter
from tflgpu.passes.match import affine_of, is_linear

Spread = Callable[[Array], Array]


def run(graph: Graph) -> int:
    """Fold every one that only a convolution reads."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("ADD", "SUB", "MUL", "DIV"):
        affine = affine_of(node)
        if affine is None or not affine.is_finite or not is_linear(node):
            continue
        reader = rewriter.sole_use(node.outputs[0], *_INPUTS)
        kind = filter_of(reader)
        if reader is None or kind is None or reader.input(kind.source) is not node.outputs[0]:
            continue
        channels = node.outputs[0].shape[-1]
        shifts = affine.shifts
        per_weight = _INPUTS[reader.op](reader.const(kind.weights), channels)
        if per_weight is None or (shifts and _sees_padding(reader)):
            continue
        weights = reader.const(kind.weights).astype(np.float64)
        bias = None
        if shifts:
            others = tuple(a for a in range(weights.ndim) if a != kind.out)
            moved = (weights * per_weight(affine.shift)).sum(others)
            bias = bias_of(reader, kind) + moved
        scaled = weights * per_weight(affine.scale) if affine.scales else None
        if not set_filter(rewriter, reader, scaled, bias):
            continue
        reader.origins = merged_origins(node, reader)
        rewriter.set_input(reader, kind.source, node.input(affine.operand))
        rewriter.remove(node)
        rewriter.count()
    return rewriter.edits


def _sees_padding(node: Node) -> bool:
    if node.op == "FULLY_CONNECTED":
        return False
    window = conv_window(node)
    _, height, width, _ = node.input(0).shape
    reach_h = (window.out_h - 1) * window.stride_h + (window.kernel_h - 1) * window.dilation_h
    reach_w = (window.out_w - 1) * window.stride_w + (window.kernel_w - 1) * window.dilation_w
    return (
        window.pad_top > 0
        or window.pad_left > 0
        or reach_h - window.pad_top >= height
        or reach_w - window.pad_left >= width
    )


# For each op: from a filter and the number of input channels, a function that lays a number per
# input channel out over the filter; None where the channels are not the filter's.


def _conv(weights: Array, channels: int) -> Spread | None:
    out, inner = weights.shape[0], weights.shape[3]
    groups = channels // inner

    def spread(numbers: Array) -> Array:
        # Output channels of one group, which read the same input channels, lie together.
        return np.repeat(numbers.reshape(groups, inner), out // groups, axis=0)[:, None, None, :]

    return spread


def _depthwise(weights: Array, channels: int) -> Spread | None:
    multiplier = weights.shape[3] // channels
    return lambda numbers: along(3, 4, np.repeat(numbers, multiplier))


def _fully_connected(weights: Array, channels: int) -> Spread | None:
    if weights.shape[1] % channels:
        return None
    # A row of the weights may take in several pixels.
    return lambda numbers: along(1, 2, np.tile(numbers, weights.shape[1] // channels))


_INPUTS = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
}

PASS = Pass("fuse_before_filter", run, phase=20)
