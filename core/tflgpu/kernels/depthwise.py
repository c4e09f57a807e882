"""DEPTHWISE_CONV_2D: one invocation makes four channels of a few neighbouring pixels.

Neighbours share most of what their windows see, and all weights, so both are read once. Which
columns can lie outside the image is known while the kernel is written: the others are read
without a test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np

from tflgpu.kernels.activation import activate
from tflgpu.kernels.operands import pixels_per_invocation, read_bias
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import groups_across, launch, spread_over
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import Window, conv_window
from tflgpu.values import frozen

# Windows of more taps are walked by loops in the kernel.
_MAX_UNROLLED = 49


def read_channels(src: ReadView, multiplier: int) -> Callable[[Expr, Expr], Expr]:
    """A function (position, output slice) -> the f32 input channels that feed the slice."""
    k, last = src.k, src.channels - 1

    def same(at: Expr, slice_: Expr) -> Expr:
        return src.load(at, slice_)

    def only_one(at: Expr, slice_: Expr) -> Expr:
        return k.splat(src.load_lane(at, 0), 4)

    def one_of_four(at: Expr, slice_: Expr) -> Expr:
        return k.splat(src.load_lane(at, slice_ // (multiplier // 4)), 4)

    def two(at: Expr, slice_: Expr) -> Expr:
        four = k.let(src.load(at, slice_ // 2), "four")
        low, high = (
            [four.lane(i), four.lane(i), four.lane(i + 1), four.lane(i + 1)] for i in (0, 2)
        )
        return k.select((slice_ % 2).eq(0), k.vec(low), k.vec(high))

    def any_four(at: Expr, slice_: Expr) -> Expr:
        channels = [k.min((slice_ * 4 + lane) // multiplier, last) for lane in range(4)]
        return k.vec([src.load_lane(at, channel) for channel in channels])

    read = any_four
    if multiplier == 1:
        read = same
    elif last == 0:
        read = only_one
    elif multiplier % 4 == 0:
        read = one_of_four
    elif multiplier == 2:
        read = two
    return lambda at, slice_: k.cast(read(at, slice_), Scalar.F32)


def columns_of(window: Window, pixels: int) -> list[int]:
    """What the windows of so many neighbours see of a row, from the first's left edge on."""
    starts = range(0, pixels * window.stride_w, window.stride_w)
    taps = range(0, window.kernel_w * window.dilation_w, window.dilation_w)
    return sorted({start + tap for start in starts for tap in taps})


class WindowSums:
    """The sums of one invocation, fed one row of the window at a time."""

    def __init__(
        self,
        k: Builder,
        window: Window,
        width: int,
        blocks: int,
        x0: Expr,
        slice_: Expr,
        read: Callable[[Expr, Expr], Expr],
        weights: Callable[[Expr, Expr], Expr],
        sums: list[Variable],
    ) -> None:
        self.k, self.window, self.width, self.blocks = k, window, width, blocks
        self.x0, self.slice, self.read, self.weights, self.sums = x0, slice_, read, weights, sums

    def add(self, row: Expr, tap_row: Expr, inside: Expr | None) -> None:
        """Add what row ``tap_row`` of the filter makes of the image row that starts at
        position ``row``; the row counts as zeros where ``inside`` does not hold."""
        k, window = self.k, self.window
        weights = [
            k.let(self._weight(tap_row * window.kernel_w + j), "w") for j in range(window.kernel_w)
        ]
        for column in columns_of(window, len(self.sums)):
            value = k.let(self._pixel(row, column, inside), "x")
            for p in range(len(self.sums)):
                tap, rest = divmod(column - p * window.stride_w, window.dilation_w)
                if rest == 0 and 0 <= tap < window.kernel_w:
                    k.fma_to(self.sums[p], value, weights[tap])

    def add_all(self, y0: Expr, image: Expr, height: int) -> None:
        """Add all rows of a window that begins at row ``y0`` of an image, whose rows begin at row
        ``image``."""
        # Rows outside are read at the edge and dropped: a branch would keep the reads of
        # different rows from being under way together.
        k, window = self.k, self.window
        first_row = -window.pad_top
        last_row = (window.out_h - 1) * window.stride_h - window.pad_top
        for tap in range(window.kernel_h):
            y, inside = k.let(y0 + k.i32(tap) * window.dilation_h, "iy"), None
            reach = tap * window.dilation_h
            if first_row + reach < 0 or last_row + reach >= height:
                inside = k.let((y >= 0) & (y < height), "inside")
                y = k.clamp(y, 0, height - 1)
            self.add(k.let((image + y) * self.width, "line"), k.i32(tap), inside)

    def add_looped(self, row: Expr, tap_row: Expr, inside: Expr | None) -> None:
        """Add the taps in a loop, for one pixel.

        Taps outside the image are skipped, or multiplied by zeros where ``inside`` is given: that
        differs where weights are not finite.
        """
        k, window = self.k, self.window
        (total,) = self.sums
        with k.loop(0, window.kernel_w, name="j") as j:
            x = k.let(self.x0 + j * window.dilation_w, "ix")
            in_row = (x >= 0) & (x < self.width)
            with nullcontext() if inside is not None else k.if_(in_row):
                if inside is not None:
                    x = k.clamp(x, 0, self.width - 1)
                value = self.read(k.let(row + x, "at"), self.slice)
                if inside is not None:
                    value = k.select(inside & in_row, value, k.f32(0.0, 4))
                weight = self._weight(tap_row * window.kernel_w + j)
                k.fma_to(total, k.let(value, "x"), weight)

    def _weight(self, tap: Expr) -> Expr:
        return self.k.cast(self.weights(tap, self.slice), Scalar.F32)

    def _pixel(self, row: Expr, column: int, inside: Expr | None) -> Expr:
        k, window = self.k, self.window
        x = k.let(self.x0 + column, "ix")
        first = column - window.pad_left
        last = first + (self.blocks - 1) * len(self.sums) * window.stride_w
        if first < 0 or last >= self.width:
            in_row = (x >= 0) & (x < self.width)
            inside = in_row if inside is None else inside & in_row
            x = k.clamp(x, 0, self.width - 1)
        value = self.read(k.let(row + x, "at"), self.slice)
        return value if inside is None else k.select(inside, value, k.f32(0.0, 4))


@frozen
class _Plan:
    """All that the kernel depends on, besides its buffers."""

    window: Window
    height: int
    width: int
    rows: int  # of the output, in all images
    slices: int  # of output channels
    multiplier: int
    pixels: int  # of an invocation
    activation: Activation
    unrolled: bool
    known_finite: bool  # the filter
    across: int  # as `groups_across` gives

    @property
    def blocks(self) -> int:
        """Invocations along a row."""
        return -(-self.window.out_w // self.pixels)

    @property
    def invocations(self) -> int:
        """All of them."""
        return self.blocks * self.slices * self.rows


def build_depthwise(low: Lowering) -> None:
    """The kernel, for any filter, constant or not."""
    node = low.node
    window = conv_window(node)
    batch, height, width, channels = node.input(0).shape
    outs = node.input(1).shape[3]
    slices = -(-outs // 4)
    unrolled = window.kernel_h * window.kernel_w <= _MAX_UNROLLED
    rows = batch * window.out_h
    pixels = (
        pixels_per_invocation(low.caps, rows * window.out_w * slices, window.out_w)
        if unrolled
        else 1
    )
    filters = node.input(1).data
    known_finite = not unrolled and filters is not None and bool(np.isfinite(filters).all())

    k = low.kernel("depthwise")
    src, weights = low.read(k, 0), low.read(k, 1)
    bias = read_bias(low, k, 2, outs)
    out = low.write(k)
    count = -(-window.out_w // pixels) * slices * rows
    plan = _Plan(
        window,
        height,
        width,
        rows,
        slices,
        outs // channels,
        pixels,
        low.attrs.activation,
        unrolled,
        known_finite,
        groups_across(low, k, count),
    )
    low.body(k, _write, plan, src, weights, bias, out)
    launch(low, k, plan.invocations)


def _write(
    k: Builder,
    plan: _Plan,
    src: ReadView,
    weights: ReadView,
    bias: Callable[[Operand], Expr],
    out: WriteView,
) -> None:
    window, height, width = plan.window, plan.height, plan.width
    slices, pixels, blocks = plan.slices, plan.pixels, plan.blocks
    i = spread_over(k, plan.invocations, plan.across)
    slice_ = k.let(i % slices, "slice")
    block = k.let(i // slices, "block")
    row = k.let(block // blocks, "row")
    first = k.let(block % blocks * pixels, "first")
    y0 = k.let(row % window.out_h * window.stride_h - window.pad_top, "y0")
    image = k.let(row // window.out_h * height, "image")
    offset = k.let(bias(slice_), "b")
    sums = [k.var(offset, "acc") for _ in range(pixels)]
    x0 = k.let(first * window.stride_w - window.pad_left, "x0")
    work = WindowSums(
        k,
        window,
        width,
        blocks,
        x0,
        slice_,
        read_channels(src, plan.multiplier),
        weights.load,
        sums,
    )

    def image_row(tap_row: Expr) -> Expr:
        return k.let(y0 + tap_row * window.dilation_h, "iy")

    def line(y: Expr) -> Expr:
        return k.let((image + y) * width, "line")

    if plan.unrolled:
        work.add_all(y0, image, height)
    else:
        with k.loop(0, window.kernel_h, name="tap") as tap_row:
            y = image_row(tap_row)
            in_column = (y >= 0) & (y < height)
            if plan.known_finite:
                with k.if_(in_column):
                    work.add_looped(line(y), tap_row, None)
            else:
                inside = k.let(in_column, "inside")
                work.add_looped(line(k.let(k.clamp(y, 0, height - 1), "iy")), tap_row, inside)
    for p, total in enumerate(sums):
        x = k.let(first + p, "x")
        result = activate(k, plan.activation, total)
        if window.out_w % pixels:
            with k.if_(x < window.out_w):
                out.store(k.let(row * window.out_w + x, "to"), slice_, result)
        else:
            out.store(k.let(row * window.out_w + x, "to"), slice_, result)


RULES = (KernelRule("DEPTHWISE_CONV_2D", "rows", build_depthwise, takes(FLOATS)),)
