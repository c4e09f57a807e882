"""MaxPoolingWithArgmax2D and MaxUnpooling2D: MediaPipe's pair of custom ops, version 1.

The first says, besides each window's largest element, where in its window it lay; the second
puts elements back to such places and leaves 0 elsewhere. A place is the f32 number
``row * filter_width + column + 0.1``: the tenth keeps its whole part safe from rounding. Both
take TFLite's C struct of pooling options as their custom options. Sizes, paddings and the places
are those of MediaPipe's CPU kernels.
"""

from __future__ import annotations

import struct

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arrays,
    Fields,
    Movement,
    OpDef,
    Operands,
    Padding,
    Sample,
)
from tflgpu.ops.items import each_row
from tflgpu.ops.windows import out_and_pad
from tflgpu.values import frozen

PLACE_BIAS = 0.1

# f32 counts no further without gaps.
_MAX_PLACES = 2**24

# TfLitePoolParams up to its computed part: padding, strides (w, h), filter (w, h), activation.
_OPTIONS = struct.Struct("<6i")
_PADDINGS = {1: Padding.SAME, 2: Padding.VALID}  # TfLitePadding in the C API; 0 is "unknown"


@frozen
class ArgmaxPoolAttrs:
    """Windows as of a pooling op, each pair as (height, width).

    Attributes:
        padding: Only the pooling looks at it.
        strides: Pixels from one window to the next.
        filter: Pixels of a window.
        activation: Applied to what the pooling finds.
    """

    padding: Padding
    strides: tuple[int, int]
    filter: tuple[int, int]
    activation: Activation = Activation.NONE


def pack_options(attributes: ArgmaxPoolAttrs) -> bytes:
    """The custom options of the attributes."""
    code = next(c for c, p in _PADDINGS.items() if p is attributes.padding)
    (stride_h, stride_w), (filter_h, filter_w) = attributes.strides, attributes.filter
    head = (code, stride_w, stride_h, filter_w, filter_h, attributes.activation.value)
    return _OPTIONS.pack(*head) + bytes(8)


def _parse(fields: Fields) -> ArgmaxPoolAttrs:
    op, options = fields.op, fields.custom_options
    if len(options) < _OPTIONS.size:
        raise ModelError(
            f"{op}: {len(options)} bytes of custom options, at least {_OPTIONS.size} needed"
        )
    code, stride_w, stride_h, filter_w, filter_h, activation = _OPTIONS.unpack_from(options)
    if code not in _PADDINGS:
        raise ModelError(f"{op}: unknown padding {code} in the custom options")
    if min(stride_w, stride_h, filter_w, filter_h) < 1:
        raise ModelError(
            f"{op}: strides {stride_h}x{stride_w} and filter {filter_h}x{filter_w} in the custom "
            "options must be positive"
        )
    allowed = (Activation.NONE, Activation.RELU, Activation.RELU_N1_TO_1, Activation.RELU6)
    if activation not in [a.value for a in allowed]:
        raise ModelError(f"{op}: fused activation {activation} in the custom options")
    return ArgmaxPoolAttrs(
        _PADDINGS[code], (stride_h, stride_w), (filter_h, filter_w), Activation(activation)
    )


def pooled_side(attributes: ArgmaxPoolAttrs, axis: int, size: int) -> tuple[int, int]:
    """Output pixels along a side (0 = height, 1 = width), and the padding before the first."""
    return out_and_pad(size, attributes.filter[axis], attributes.strides[axis], attributes.padding)


def _infer_pool(attributes: ArgmaxPoolAttrs, operands: Operands) -> list[TensorSpec]:
    op = "MaxPoolingWithArgmax2D"
    (x,) = take_operands(op, operands, 1)
    need_rank(op, x, "operand 0", 4)
    if not x.dtype.is_float:
        raise ModelError(f"{op}: operand 0 is {x.dtype.value}, a float needed")
    if attributes.filter[0] * attributes.filter[1] > _MAX_PLACES:
        raise UnsupportedError(
            f"{op}: a float cannot number the places of a filter {attributes.filter}"
        )
    n, h, w, c = x.shape
    sides = [pooled_side(attributes, axis, size)[0] for axis, size in enumerate((h, w))]
    if min(sides) < 1:
        raise ModelError(f"{op}: filter {attributes.filter} does not fit {list(x.shape)}")
    return [TensorSpec((n, *sides, c), x.dtype)] * 2


def _reference_pool(attributes: ArgmaxPoolAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    (rows, top), (columns, left) = (
        pooled_side(attributes, axis, size) for axis, size in enumerate(x.shape[1:3])
    )
    (step_y, step_x), (filter_y, filter_x) = attributes.strides, attributes.filter
    # Taps that see only padding find nothing; a filter may be far larger than the image.
    seen_y = range(max(0, top - (rows - 1) * step_y), min(filter_y, top + x.shape[1]))
    seen_x = range(max(0, left - (columns - 1) * step_x), min(filter_x, left + x.shape[2]))
    top, left = top - seen_y.start, left - seen_x.start
    high = (rows - 1) * step_y + len(seen_y)
    wide = (columns - 1) * step_x + len(seen_x)
    after = [max(0, high - top - x.shape[1]), max(0, wide - left - x.shape[2])]
    border = ((0, 0), (top, after[0]), (left, after[1]), (0, 0))
    padded = np.pad(x, border, constant_values=-np.inf)
    best = np.full((x.shape[0], rows, columns, x.shape[3]), -np.inf, x.dtype)
    place = np.zeros(best.shape, x.dtype)
    for dy in seen_y:
        for dx in seen_x:
            y, x0 = dy - seen_y.start, dx - seen_x.start
            here = padded[:, y : y + high : step_y, x0 : x0 + wide : step_x]
            here = here[:, :rows, :columns]
            better = (here > best) | (np.isnan(here) & ~np.isnan(best))
            best = np.where(better, here, best)
            place = np.where(better, x.dtype.type(dy * filter_x + dx), place)
    return [apply_activation(attributes.activation, best), place + x.dtype.type(PLACE_BIAS)]


def before_first(size: int, step: int, window: int) -> int:
    """Pixels by which the first window of an unpooling begins before the image."""
    return max(0, ((size - 1) * step + window - size * window) // 2)


def _infer_unpool(attributes: ArgmaxPoolAttrs, operands: Operands) -> list[TensorSpec]:
    op = "MaxUnpooling2D"
    x, places = take_operands(op, operands, 2)
    need_rank(op, x, "operand 0", 4)
    if not x.dtype.is_float or not places.dtype.is_float:
        raise ModelError(f"{op}: operands {x.spec} and {places.spec} must be floats")
    if x.shape != places.shape:
        raise ModelError(
            f"{op}: places (operand 1) of shape {list(places.shape)} for {list(x.shape)}"
        )
    n, h, w, c = x.shape
    return [TensorSpec((n, h * attributes.filter[0], w * attributes.filter[1], c), x.dtype)]


def _reference_unpool(attributes: ArgmaxPoolAttrs, arrays: Arrays) -> list[Array]:
    x, places = present(arrays[0]), present(arrays[1])
    n, h, w, c = x.shape
    (step_y, step_x), (filter_y, filter_x) = attributes.strides, attributes.filter
    out = np.zeros((n, h * filter_y, w * filter_x, c), x.dtype)
    known = (places >= 0) & (places < filter_y * filter_x)  # a NaN is nowhere
    place = np.where(known, places, 0).astype(np.int64)
    before = [before_first(h, step_y, filter_y), before_first(w, step_x, filter_x)]
    indices: Array = np.indices(x.shape)
    batch, y, left, channel = indices
    row = y * step_y - before[0] + place // filter_x
    column = left * step_x - before[1] + place % filter_x
    inside = known & (row >= 0) & (row < out.shape[1]) & (column >= 0) & (column < out.shape[2])
    # Where windows overlap the later one in row-major order wins, as NumPy assigns too.
    out[batch[inside], row[inside], column[inside], channel[inside]] = x[inside]
    return [out]


def _pool_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        strides: tuple[int, int],
        window: tuple[int, int],
        padding: Padding = Padding.SAME,
        activation: Activation = Activation.NONE,
    ) -> Sample:
        options = pack_options(ArgmaxPoolAttrs(padding, strides, window, activation))
        return Sample(id, {}, (Arg(shape, low=-8, high=8),), custom_options=options)

    return [
        sample("even", (1, 6, 10, 8), (2, 2), (2, 2)),
        sample("odd", (1, 7, 5, 5), (2, 2), (2, 2)),
        sample("valid", (2, 7, 5, 3), (2, 2), (2, 2), Padding.VALID),
        sample("uneven", (1, 7, 11, 6), (2, 3), (2, 3)),
        sample("too_large_to_unroll", (1, 11, 10, 5), (3, 2), (9, 7)),
        sample("overlap", (1, 7, 5, 3), (1, 2), (3, 3)),
        sample("overlap_valid", (1, 7, 9, 4), (2, 1), (3, 5), Padding.VALID),
        sample("relu", (1, 6, 4, 3), (2, 2), (2, 2), activation=Activation.RELU),
        sample("relu6", (1, 6, 4, 3), (2, 2), (2, 2), activation=Activation.RELU6),
    ]


def _unpool_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        window: tuple[int, int],
        strides: tuple[int, int] | None = None,
    ) -> Sample:
        options = pack_options(ArgmaxPoolAttrs(Padding.VALID, strides or window, window))
        places = Arg(shape, low=0.0, high=window[0] * window[1] - 0.1)
        return Sample(id, {}, (Arg(shape), places), custom_options=options)

    return [
        sample("plain", (1, 3, 5, 8), (2, 2)),
        sample("odd_channels", (2, 3, 5, 3), (2, 2)),
        sample("uneven", (1, 3, 2, 5), (2, 3)),
        sample("one_pixel", (1, 1, 1, 7), (3, 3)),
        sample("batch", (3, 2, 3, 4), (2, 1)),
        sample("overlap", (1, 3, 5, 3), (3, 3), strides=(2, 2)),
        sample("gaps", (2, 3, 4, 5), (2, 3), strides=(3, 1)),
    ]


OPS = (
    OpDef(
        "MaxPoolingWithArgmax2D", _parse, _infer_pool, _reference_pool, _pool_samples,
        accuracy=Accuracy.ROUNDED, is_custom=True, batch=each_row(0),
    ),
    OpDef(
        "MaxUnpooling2D", _parse, _infer_unpool, _reference_unpool, _unpool_samples,
        accuracy=Accuracy.EXACT, is_custom=True, movement=Movement(keeps_values=True),
        batch=each_row(0, 1)
    ),
)  # fmt: skip
