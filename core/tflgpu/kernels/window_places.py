"""Where the windows of an output's pixels lie on an NHWC image, for an invocation that has whole
pixels; for workgroups that have blocks of them it is `tflgpu.kernels.image_blocks`."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.ops.windows import Window

#: Row and column of a tap -> row-major position of the pixel that it sees, and whether there is
#: one; the position is in bounds in any case.
Seen = Callable[[Expr, Expr], tuple[Expr, Expr]]


def window_corner(
    k: Builder, window: Window, image: tuple[int, ...], row: Expr
) -> tuple[Expr, Expr, Expr]:
    """Row and column where the window of the output's pixel ``row`` begins, which lie outside where
    it begins in the padding; and the position of the first pixel of its image."""
    _, height, width, _ = image
    x = k.let(row % window.out_w, "x")
    rest = k.let(row // window.out_w, "rest")
    y = k.let(rest % window.out_h, "y")
    y0 = k.let(y * window.stride_h - window.pad_top, "y0")
    x0 = k.let(x * window.stride_w - window.pad_left, "x0")
    return y0, x0, k.let(rest // window.out_h * (height * width), "image")


def seen_pixels(k: Builder, image: tuple[int, ...], window: Window, row: Expr) -> Seen:
    """The pixels of an ``image`` that the taps read from the output's pixel ``row``."""
    _, height, width, _ = image
    y0, x0, first = window_corner(k, window, image, row)

    def seen(ty: Expr, tx: Expr) -> tuple[Expr, Expr]:
        y = k.let(y0 + ty * window.dilation_h, "iy")
        x = k.let(x0 + tx * window.dilation_w, "ix")
        inside = k.let((y >= 0) & (y < height) & (x >= 0) & (x < width), "inside")
        at = first + k.clamp(y, 0, height - 1) * width + k.clamp(x, 0, width - 1)
        return k.let(at, "at"), inside

    return seen
