"""Blocks of an image's pixels, one a workgroup: what their windows see, and where results go."""

from __future__ import annotations

from tflgpu.kernels.gemm import mirrored
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.ops.windows import Window


def blocks_of(window: Window, pixels: int, height: int, width: int) -> int:
    """Blocks of all images, by the pixels of the output and those of a block's sides."""
    images = pixels // (window.out_h * window.out_w)
    return images * -(-window.out_h // height) * -(-window.out_w // width)


class ImageBlock:
    """The block of a workgroup in a kernel."""

    def __init__(self, k: Builder, window: Window, height: int, width: int, group: Expr) -> None:
        """Find block ``group``, whose sides are so many pixels of the output."""
        self._k, self._window = k, window
        across, down = -(-window.out_w // width), -(-window.out_h // height)
        group = k.let(group, "block")
        self._x0 = k.let(group % across * width, "x0")
        self._y0 = k.let(group // across % down * height, "y0")
        self._image = k.let(group // (across * down), "image")

    def source(
        self, y: Expr, x: Expr, shape: tuple[int, ...], turn: int | None = None
    ) -> tuple[Expr, Expr]:
        """The position in an NHWC tensor of what lies so many pixels below and to the right of the
        first that the block's windows see, and whether it is in the image; else another's. With a
        ``turn`` the image is mirrored around (`mirrored`)."""
        k, (_, height, width, _) = self._k, shape
        y, x = self.seen(y, x)
        if turn is not None:
            y, x = mirrored(k, y, height, turn), mirrored(k, x, width, turn)
        return self.within(y, x, shape)

    def seen(self, y: Expr, x: Expr) -> tuple[Expr, Expr]:
        """Row and column of what lies so, in or outside the image."""
        k, window = self._k, self._window
        y = k.let(self._y0 * window.stride_h - window.pad_top + y, "y")
        return y, k.let(self._x0 * window.stride_w - window.pad_left + x, "x")

    def within(self, y: Expr, x: Expr, shape: tuple[int, ...]) -> tuple[Expr, Expr]:
        """The position in an NHWC tensor of a row and a column of the block's image, and whether
        they are there; else another's."""
        k, (_, height, width, _) = self._k, shape
        inside = k.let((y >= 0) & (y < height) & (x >= 0) & (x < width), "inside")
        at = k.clamp(y, 0, height - 1) * width + k.clamp(x, 0, width - 1)
        return k.let(self._image * (height * width) + at, "from"), inside

    def result(self, y: Expr, x: Expr) -> tuple[Expr, Expr]:
        """Whether a pixel of the block is one of the output, and its position there; else that of
        another."""
        k, window = self._k, self._window
        y, x = k.let(self._y0 + y, "y"), k.let(self._x0 + x, "x")
        valid = (y < window.out_h) & (x < window.out_w)
        y, x = k.min(y, window.out_h - 1), k.min(x, window.out_w - 1)
        return valid, k.let((self._image * window.out_h + y) * window.out_w + x, "row")
