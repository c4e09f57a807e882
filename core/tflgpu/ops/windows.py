"""Windows that slide over images: sizes, padding, and the input pixels that each tap sees.

Sizes and padding are TFLite's (`ComputePaddingHeightWidth`): with SAME the output has
ceil(size / stride) pixels and the odd pixel of padding goes below and to the right; with VALID
the window never leaves the image.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Shape
from tflgpu.ops.base import Activation, Padding
from tflgpu.ops.facets import Pads
from tflgpu.ops.positions import Along, Positions, of_items
from tflgpu.values import evolve, frozen

# Positions are computed in signed 32-bit numbers on devices, as in TFLite.
_MAX_REACH = 2**31 - 1


@frozen
class WindowAttrs:
    """Options of an op that slides a window.

    ``pads`` takes the place of ``padding`` where it is set; no file has it, but a pass that
    merges a PAD does.
    """

    stride_h: int
    stride_w: int
    padding: Padding
    activation: Activation = Activation.NONE
    dilation_h: int = 1
    dilation_w: int = 1
    pads: Pads | None = None


@frozen
class Window:
    """A window on an image of known size: the output pixel (y, x) and tap (i, j) meet at
    input pixel (y * stride_h - pad_top + i * dilation_h, the same along x)."""

    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_top: int
    pad_left: int
    out_h: int
    out_w: int


def place(
    op: str, attributes: WindowAttrs, image: Shape, kernel: tuple[int, int], least: int = 1
) -> Window:
    """The window of ``kernel`` = (height, width) on an NHWC ``image``.

    Args:
        op: What errors name.
        attributes: Options.
        image: Its shape.
        kernel: The window's sides.
        least: Fewest pixels of an output's side. TFLite's own convolutions, unlike XNNPACK's, make
            an empty output where the image is too small by less than twice the stride.

    Raises:
        ModelError: the window does not fit, so that the output would have fewer.
    """
    pads = attributes.pads
    placed = []
    for axis, name in ((0, "height"), (1, "width")):
        size, taps = image[1 + axis], kernel[axis]
        stride = (attributes.stride_h, attributes.stride_w)[axis]
        dilation = (attributes.dilation_h, attributes.dilation_w)[axis]
        span = (taps - 1) * dilation + 1
        if pads is not None:
            before, after = ((pads.top, pads.bottom), (pads.left, pads.right))[axis]
            out = _places(size + before + after - span, stride)
        else:
            out, before = out_and_pad(size, span, stride, attributes.padding)
        if taps < 1 or out < least:
            raise ModelError(
                f"{op}: a filter of {name} {taps} (dilated {span}) on an input of {name} {size} "
                f"with {'explicit' if pads else attributes.padding.name} padding leaves no output"
            )
        if max((out - 1) * stride, size) + span > _MAX_REACH:
            raise ModelError(
                f"{op}: a filter of {name} {taps}, dilated {dilation} times, on an input of {name} "
                f"{size} reaches over more than {_MAX_REACH} pixels"
            )
        placed.append((taps, stride, dilation, before, out))
    (kh, sh, dh, top, out_h), (kw, sw, dw, left, out_w) = placed
    return Window(kh, kw, sh, sw, dh, dw, top, left, out_h, out_w)


def _places(room: int, stride: int) -> int:
    """How many places a window has that can go so far: rounded towards zero, as in C."""
    reach = room + stride
    return reach // stride if reach >= 0 else -(-reach // stride)


def out_and_pad(size: int, span: int, stride: int, padding: Padding) -> tuple[int, int]:
    """How many places a window of ``span`` pixels has along a side, and the padding before it."""
    if padding is Padding.VALID:
        return _places(size - span, stride), 0
    out = -(-size // stride)
    return out, max((out - 1) * stride + span - size, 0) // 2


def trimmed(window: Window, height: int, width: int) -> tuple[Window, slice, slice]:
    """A window without the taps that see only padding, on an image of these sides.

    Filters may be far larger than an image, and their taps far apart: what is left is no larger
    than the image and the way that the window goes over it.

    Returns:
        The smaller window, whose padding may be negative (then so many pixels are never seen), and
        which rows and columns of the filter it has.
    """
    rows = _seen(
        window.kernel_h,
        window.dilation_h,
        window.pad_top,
        height,
        (window.out_h - 1) * window.stride_h,
    )
    columns = _seen(
        window.kernel_w,
        window.dilation_w,
        window.pad_left,
        width,
        (window.out_w - 1) * window.stride_w,
    )
    smaller = evolve(
        window,
        kernel_h=rows.stop - rows.start,
        kernel_w=columns.stop - columns.start,
        pad_top=window.pad_top - rows.start * window.dilation_h,
        pad_left=window.pad_left - columns.start * window.dilation_w,
    )
    return smaller, rows, columns


def unseen_products(weights: Array, rows: slice, columns: slice, channels: int) -> Array:
    """What the taps that `trimmed` leaves out add to the sums of each output channel: zeros of the
    padding times their weights, which is NaN where one of those is not finite (docs/nan.md).

    Args:
        weights: All of them, with the filter's rows and columns as axes 1 and 2.
        rows: Which rows of the filter `trimmed` keeps.
        columns: Which columns.
        channels: The axis of the output channels.
    """
    harmless = np.isfinite(weights)
    harmless[:, rows, columns] = True
    others = tuple(axis for axis in range(weights.ndim) if axis != channels)
    return np.asarray(np.where(harmless.all(axis=others), np.float32(0), np.float32(np.nan)))


def _seen(taps: int, dilation: int, pad: int, size: int, way: int) -> slice:
    """The taps that see a pixel from somewhere on the window's ``way``; at least one."""
    first = max(0, -(-(pad - way) // dilation))
    last = min(taps - 1, (pad + size - 1) // dilation)
    first = min(first, taps - 1)
    return slice(first, max(first, last) + 1)


def conv_window(node: Node) -> Window:
    """The window of a CONV_2D or DEPTHWISE_CONV_2D node, whose filter is [.., height, width,
    ..]."""
    _, height, width, _ = node.input(1).shape
    return place(node.op, node.attrs, node.input(0).shape, (height, width), least=0)


def conv_zeros(node: Node) -> Pads:
    """The rows and columns of zeros that the window of such a node reads."""
    window = conv_window(node)
    _, height, width, _ = node.input(0).shape
    span_h = (window.kernel_h - 1) * window.dilation_h + 1
    span_w = (window.kernel_w - 1) * window.dilation_w + 1
    if not (window.out_h and window.out_w):
        return Pads(0, 0, 0, 0)
    below = (window.out_h - 1) * window.stride_h + span_h - height - window.pad_top
    right = (window.out_w - 1) * window.stride_w + span_w - width - window.pad_left
    return Pads(window.pad_top, max(below, 0), window.pad_left, max(right, 0))


def window_positions(node: Node, cut: Node) -> Positions:
    """Along an image's sides, of a convolution in steps of 1: positions behind the size have to be
    the zeros that are read there, if any are."""
    found = of_items(node, cut)
    (images, *axes), *others = found.operands
    pads, less = conv_zeros(node), conv_zeros(cut)
    if node.attrs.stride_h == 1 and pads.top == less.top:
        axes[0] = Along(1, 0)
    if node.attrs.stride_w == 1 and pads.left == less.left:
        axes[1] = Along(2, 0)
    return Positions([[images, *axes], *others])


def pad_image(image: Array, window: Window, fill: float = 0.0) -> Array:
    """An NHWC image with room for every tap of the window; the image itself if there is.

    Pixels before the first tap, where the padding is negative, are left out.
    """
    if window.pad_top < 0 or window.pad_left < 0:
        image = image[:, max(0, -window.pad_top) :, max(0, -window.pad_left) :]
        window = evolve(window, pad_top=max(0, window.pad_top), pad_left=max(0, window.pad_left))
    _, height, width, _ = image.shape
    reach_h = (window.out_h - 1) * window.stride_h + (window.kernel_h - 1) * window.dilation_h + 1
    reach_w = (window.out_w - 1) * window.stride_w + (window.kernel_w - 1) * window.dilation_w + 1
    bottom = max(0, reach_h - window.pad_top - height)
    right = max(0, reach_w - window.pad_left - width)
    if not (window.pad_top or window.pad_left or bottom or right):
        return image
    padded = np.full(
        (
            image.shape[0],
            window.pad_top + height + bottom,
            window.pad_left + width + right,
            image.shape[3],
        ),
        fill,
        image.dtype,
    )
    padded[
        :, window.pad_top : window.pad_top + height, window.pad_left : window.pad_left + width
    ] = image
    return padded


def tap_view(padded: Array, window: Window, i: int, j: int) -> Array:
    """What tap (i, j) sees from every output pixel: a view [N, out_h, out_w, C]."""
    y, x = i * window.dilation_h, j * window.dilation_w
    return padded[
        :,
        y : y + (window.out_h - 1) * window.stride_h + 1 : window.stride_h,
        x : x + (window.out_w - 1) * window.stride_w + 1 : window.stride_w,
    ]
