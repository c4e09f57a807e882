"""The kernel of QUANTIZED_CONV_2D: one invocation, a few pixels, one slice of channels."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernels.quantized_sums import byte_storage, constants_only, finisher
from tflgpu.kernels.window_places import seen_pixels
from tflgpu.language.types import F32x4, I32x4, Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.quantized_conv import OP
from tflgpu.ops.quantized_products import window_of

_WORKGROUP = (8, 8, 1)
_PIXELS = 4  # that an invocation computes with the weights that it loads
#: Products are summed in f32, which is faster than in i32 and exact up to 2**24: so many slices of
#: four products, each of at most 255 * 128, before they join a sum in i32.
_SLICES = 2**24 // (255 * 128) // 4


def _pack_filter(ohwi: Array) -> Array:
    """OHWI -> [tap, input slice, lane of it, output slice, lane of it], zero-padded."""
    out, height, width, inner = ohwi.shape
    ins, outs = -(-inner // 4), -(-out // 4)
    padded = np.zeros((outs * 4, height * width, ins * 4), np.int8)
    padded[:out, :, :inner] = ohwi.reshape(out, height * width, inner)
    return np.asarray(padded.transpose(1, 2, 0).reshape(height * width, ins, 4, outs, 4))


def _build(low: Lowering) -> None:
    node, zero = low.node, low.attrs.source_zero
    window = window_of(node)
    k = low.kernel("quantized_conv_2d", _WORKGROUP)
    src = low.read(k, 0)
    weights = low.weights(k, _pack_filter(node.const(1)), scalar=byte_storage(low))
    out = low.write(k)
    is_short = window.kernel_h * window.kernel_w * src.slices <= _SLICES
    pixels = out.layout.outer
    column = k.let(k.global_id(0), "column")
    first = k.let(k.global_id(1) * _PIXELS, "first")
    guard(k, column < out.slices, first < pixels)
    rows = [k.let(k.min(first + i, pixels - 1), "row") for i in range(_PIXELS)]
    views = [seen_pixels(k, src.shape, window, row) for row in rows]
    nothing = k.const(0.0, F32x4)
    sums = [k.var(nothing, "acc") for _ in rows]
    totals = [k.var(k.const(0, I32x4), "total") for _ in rows]

    def settle() -> None:
        for total, acc in zip(totals, sums, strict=True):
            k.add_to(total, k.cast(acc, Scalar.I32))
            k.set(acc, nothing)

    with k.loop(0, window.kernel_h, name="ty") as ty, k.loop(0, window.kernel_w, name="tx") as tx:
        pixels_seen = [seen(ty, tx) for seen in views]
        tap = k.let((ty * window.kernel_w + tx) * src.slices, "tap")
        for begin in range(0, src.slices, _SLICES):
            end = min(begin + _SLICES, src.slices)
            with k.loop(begin, end, name="s") as s:
                steps = [
                    k.let(
                        k.select(inside, k.cast(src.load(at, s) - zero, Scalar.F32), nothing), "x"
                    )
                    for at, inside in pixels_seen
                ]
                base = k.let((tap + s) * (4 * out.slices) + column, "base")
                for lane in range(4):
                    weight = k.let(k.load(weights, base + lane * out.slices, Scalar.F32), "weight")
                    for acc, step in zip(sums, steps, strict=True):
                        k.fma_to(acc, step.lane(lane), weight)
            if not is_short:
                settle()
    if is_short:
        settle()
    finish = finisher(low, k, column)
    for i, total in enumerate(totals):
        with k.if_(first + i < pixels):
            out.store(k.let(first + i, "at"), column, finish(total))
    low.dispatch(k, (out.slices, -(-pixels // _PIXELS), 1))


RULES = (KernelRule(OP, "direct", _build, constants_only),)
