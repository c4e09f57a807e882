"""CONV_2D whose filter comes in groups: one invocation per few pixels and a slice of channels.

A grouped filter could be written as a full one with zeros between the groups, but then a NaN or
an infinity in one group would reach the results of all the others.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernels.activation import activate
from tflgpu.kernels.gemm import pack_bias
from tflgpu.kernels.window_places import seen_pixels
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.view import ReadView
from tflgpu.ops.windows import conv_window

_WORKGROUP = (8, 8, 1)
_ROWS = 4  # pixels of an invocation, which share what it reads of the filter


def pack_grouped(ohwi: Array) -> Array:
    """OHWI weights -> [tap, input channel of a group, output slice, lane of it], zero-padded."""
    out, height, width, inner = ohwi.shape
    padded = np.zeros((-(-out // 4) * 4, height * width, inner), np.float32)
    padded[:out] = ohwi.reshape(out, height * width, inner)
    return np.ascontiguousarray(padded.transpose(1, 2, 0))


@attrs.frozen
class _Groups:
    """Which input channels an invocation's four output channels read."""

    k: Builder
    src: ReadView
    column: Expr
    inner: int
    per_group: int
    channels: int

    @property
    def in_slices(self) -> bool:
        """Whether the four are of one group, whose input channels are whole slices."""
        return self.inner % 4 == 0 and self.per_group % 4 == 0

    def first(self, lane: int) -> Expr:
        """The first input channel of one of the four's group."""
        channel = self.k.min(self.column * 4 + lane, self.channels - 1)
        return self.k.let(channel // self.per_group * self.inner, "first")

    def load(self, at: Expr, firsts: list[Expr], i: Expr) -> Expr:
        """Input channel ``i`` of each one's group, f32."""
        if self.per_group % 4 == 0:
            return self.k.splat(self.src.load_lane(at, firsts[0] + i), 4)
        return self.k.vec([self.src.load_lane(at, first + i) for first in firsts])


def build_grouped(low: Lowering) -> None:
    """Write the kernel of a convolution with a constant filter in groups and dispatch it."""
    node = low.node
    ohwi, bias_value = node.const(1), node.optional_input(2)
    window, channels, inner = conv_window(node), ohwi.shape[0], ohwi.shape[3]
    pixels = node.input(0).shape[0] * window.out_h * window.out_w
    taps = window.kernel_h * window.kernel_w
    k = low.kernel(f"{node.op.lower()}_grouped", _WORKGROUP)
    # Products are summed in f32.
    src = attrs.evolve(low.read(k, 0), compute=Scalar.F32)
    weights = low.weights(k, pack_grouped(ohwi))
    given = None if bias_value is None else bias_value.data
    bias = low.weights(k, pack_bias(given, channels), "bias", scalar=Scalar.F32)
    out = low.write(k)
    column, row0 = k.let(k.global_id(0), "column"), k.let(k.global_id(1) * _ROWS, "row")
    guard(k, column < out.slices, row0 < pixels)
    rows = [k.let(k.min(row0 + i, pixels - 1), "r") for i in range(_ROWS)]
    groups = _Groups(k, src, column, inner, channels // (src.channels // inner), channels)
    firsts = [groups.first(lane) for lane in range(4)]
    sums = [k.var(k.f32(0.0, 4), "acc") for _ in range(_ROWS)]
    views = [seen_pixels(k, src.shape, window, row) for row in rows]

    def weight(tap: Expr, channel: Expr) -> Expr:
        at = (tap * inner + channel) * out.slices + column
        return k.let(k.load(weights, at, Scalar.F32), "w")

    with k.loop(0, taps, name="tap") as tap:
        places = [seen(tap // window.kernel_w, tap % window.kernel_w) for seen in views]
        if groups.in_slices:
            slice0 = k.let(firsts[0] // 4, "slice0")
            with k.loop(0, inner // 4, name="s") as s:
                values = [
                    k.let(k.select(inside, src.load(at, slice0 + s), k.f32(0.0, 4)), "x")
                    for at, inside in places
                ]
                for lane in range(4):
                    w = weight(tap, s * 4 + lane)
                    for total, value in zip(sums, values, strict=True):
                        k.fma_to(total, value.lane(lane), w)
        else:
            with k.loop(0, inner, name="c") as c:
                w = weight(tap, c)
                for total, (at, inside) in zip(sums, places, strict=True):
                    value = k.select(inside, groups.load(at, firsts, c), k.f32(0.0, 4))
                    k.fma_to(total, value, w)
    offset = k.let(k.load(bias, column), "b")
    for i, total in enumerate(sums):
        with k.if_(row0 + i < pixels):
            value = activate(k, low.attrs.activation, k.let(total + offset, "total"))
            out.store(k.let(row0 + i, "at"), column, value)
    low.dispatch(k, (out.slices, -(-pixels // _ROWS), 1))
