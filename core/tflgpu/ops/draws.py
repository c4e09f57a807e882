"""Random samples (`OpDef.generate`) for ops whose operands must fit together in more than size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ops.base import Activation, Arg, Draw, Padding, Sample

Generator = Callable[[Draw], Sample]

_CLAMPS = tuple(a.value for a in (Activation.NONE, Activation.RELU, Activation.RELU6))


def _image(draw: Draw, most: int = 13) -> tuple[int, int, int, int]:
    return (draw.integer(1, 2), draw.size(most), draw.size(most), draw.size())


def _window(draw: Draw, height: int, width: int, dilated: bool = True) -> dict[str, int]:
    """Options of a window over an image, without its size."""
    found = {
        "stride_h": draw.integer(1, 3),
        "stride_w": draw.integer(1, 3),
        "padding": draw.choice((Padding.SAME, Padding.SAME, Padding.VALID)).value,
        "fused_activation_function": draw.choice(_CLAMPS),
    }
    if dilated and min(height, width) > 2:
        found["dilation_h_factor"] = draw.integer(1, 2)
        found["dilation_w_factor"] = draw.integer(1, 2)
    return found


def _taps(draw: Draw, fields: dict[str, int], height: int, width: int) -> tuple[int, int]:
    """A size that leaves an output with either padding."""
    rows = (height - 1) // fields.get("dilation_h_factor", 1) + 1
    columns = (width - 1) // fields.get("dilation_w_factor", 1) + 1
    return min(rows, draw.choice((3, 1, 2, 4, 5))), min(columns, draw.choice((3, 1, 2, 4, 5)))


def conv(draw: Draw) -> Sample:
    """CONV_2D: any window, groups, with or without a bias, constant or computed filter."""
    batch, height, width, _ = _image(draw)
    fields = _window(draw, height, width)
    taps = _taps(draw, fields, height, width)
    groups = draw.choice((1, 1, 2, 3))
    inner, out = draw.size(11), groups * draw.size(7)
    const = draw.choice((True, True, False))
    args = (
        Arg((batch, height, width, inner * groups)),
        Arg((out, *taps, inner), const=const),
        Arg((out,), const=const),
    )
    bias = draw.choice((True, False))
    return Sample("conv", fields, args if bias else args[:2], accumulates=taps[0] * taps[1] * inner)


def depthwise(draw: Draw) -> Sample:
    """DEPTHWISE_CONV_2D: any window and multiplier."""
    image = _image(draw)
    fields = _window(draw, image[1], image[2])
    taps = _taps(draw, fields, image[1], image[2])
    fields["depth_multiplier"] = draw.choice((1, 1, 2, 3))
    out = image[3] * fields["depth_multiplier"]
    args = (Arg(image), Arg((1, *taps, out), const=True), Arg((out,), const=True))
    return Sample("depthwise", fields, args, accumulates=taps[0] * taps[1])


def pool(draw: Draw) -> Sample:
    """The pooling ops: any window."""
    image = _image(draw)
    fields = _window(draw, image[1], image[2], dilated=False)
    rows, columns = _taps(draw, fields, image[1], image[2])
    fields |= {"filter_height": rows, "filter_width": columns}
    return Sample("pool", fields, (Arg(image, low=-8, high=8),), accumulates=rows * columns)


def _shape(draw: Draw, least: int = 1, most: int = 5) -> tuple[int, ...]:
    return tuple(draw.size(9) for _ in range(draw.integer(least, most)))


def ranged(low: float, high: float, low2: float, high2: float) -> Generator:
    """Arithmetic of two operands that broadcast, each of a range."""

    def broadcast(draw: Draw) -> Sample:
        shape = _shape(draw)
        other = tuple(draw.choice((d, 1)) for d in shape)[draw.integer(0, len(shape)) :]
        const = draw.choice((False, True))
        pair = [Arg(shape, low=low, high=high), Arg(other, low=low2, high=high2, const=const)]
        return Sample("broadcast", {}, tuple(pair))

    return broadcast


def pad(draw: Draw) -> Sample:
    """PAD: any border of up to four on every side."""
    shape = _shape(draw, most=4)
    border = [[draw.integer(0, 4), draw.integer(0, 4)] for _ in shape]
    return Sample("pad", {}, (Arg(shape, low=-9, high=9), Arg.of(border, DType.I32)))


def slice_(draw: Draw) -> Sample:
    """SLICE: any part."""
    shape = _shape(draw, most=4)
    begin = [draw.integer(0, d - 1) for d in shape]
    size = [draw.choice((-1, draw.integer(1, d - b))) for d, b in zip(shape, begin, strict=True)]
    bounds = (Arg.of(begin, DType.I32), Arg.of(size, DType.I32))
    return Sample("slice", {}, (Arg(shape, low=-9, high=9), *bounds))


def concat(draw: Draw) -> Sample:
    """CONCATENATION: two to five operands along any axis."""
    shape = _shape(draw, most=4)
    axis = draw.integer(0, len(shape) - 1)
    args = tuple(
        Arg((*shape[:axis], draw.size(9), *shape[axis + 1 :]), low=-9, high=9)
        for _ in range(draw.integer(2, 5))
    )
    return Sample("concat", {"axis": draw.choice((axis, axis - len(shape)))}, args)


def resize(draw: Draw) -> Sample:
    """RESIZE_BILINEAR: any sizes in every mode."""
    image = _image(draw, 11)
    corners, centers = draw.choice(((False, False), (True, False), (False, True)))
    fields = {"align_corners": corners, "half_pixel_centers": centers}
    size = Arg.of([draw.size(13), draw.size(13)], DType.I32)
    args = (Arg(image, low=-9, high=9), size)
    return Sample("resize", fields, args, version=3 if centers else 1, accumulates=4)


def softmax(draw: Draw) -> Sample:
    """SOFTMAX over any number of classes."""
    shape = (*_shape(draw, 0, 3), draw.choice((draw.size(), 3 * draw.size() + 64)))
    fields = {"beta": draw.choice((1.0, 0.25))}
    return Sample("softmax", fields, (Arg(shape, low=-4, high=4),), accumulates=shape[-1])


def reduce(draw: Draw) -> Sample:
    """The reductions: any axes, kept or dropped."""
    shape = _shape(draw, most=4)
    axes = [i for i in range(len(shape)) if draw.choice((True, False))] or [len(shape) - 1]
    count = int(np.prod([shape[a] for a in axes]))
    args = (Arg(shape, low=-2, high=2), Arg.of(axes, DType.I32))
    return Sample("reduce", {"keep_dims": draw.choice((True, False))}, args, accumulates=count)
