"""The kernel of QUANTIZED_DEPTHWISE_CONV_2D: one invocation, one pixel, one slice of channels."""

from __future__ import annotations

import numpy as np

from tflgpu.kernels.quantized_sums import byte_storage, constants_only, finisher
from tflgpu.kernels.window_places import seen_pixels
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4
from tflgpu.lowering.grid import launch, spread
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.view import ReadView
from tflgpu.lowering.weights import whole_slices
from tflgpu.ops.quantized_depthwise import OP
from tflgpu.ops.quantized_products import window_of


def _build(low: Lowering) -> None:
    node, zero = low.node, low.attrs.source_zero
    window = window_of(node)
    k = low.kernel("quantized_depthwise_conv_2d")
    src = low.read(k, 0)
    weights = low.weights(k, whole_slices(node.const(1), np.int8), scalar=byte_storage(low))
    out = low.write(k)
    multiplier = out.channels // src.channels
    count = out.layout.outer * out.slices
    i = spread(low, k, count)
    row, column = k.let(i // out.slices, "row"), k.let(i % out.slices, "column")
    seen = seen_pixels(k, src.shape, window, row)
    none = k.const(0, I32x4)
    acc = k.var(none, "acc")
    with k.loop(0, window.kernel_h, name="ty") as ty, k.loop(0, window.kernel_w, name="tx") as tx:
        at, inside = seen(ty, tx)
        steps = _channels(k, src, at, column, multiplier) - zero
        weight = k.load(weights, (ty * window.kernel_w + tx) * out.slices + column)
        k.add_to(acc, k.select(inside, steps, none) * weight)
    out.store(row, column, finisher(low, k, column)(acc))
    launch(low, k, count)


def _channels(k: Builder, src: ReadView, at: Expr, column: Expr, multiplier: int) -> Expr:
    """The input's channels that a slice of the output's reads."""
    if multiplier == 1:
        return src.load(at, column)
    lanes = [k.min((column * 4 + lane) // multiplier, src.channels - 1) for lane in range(4)]
    return k.vec([src.load_lane(at, lane) for lane in lanes])


RULES = (KernelRule(OP, "direct", _build, constants_only),)
