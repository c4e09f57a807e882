"""CONV_2D, versions 1-8: dilated, grouped, with a constant or computed filter.

Operands: input NHWC, filter OHWI, and a bias per output channel that may be absent. The number
of groups is the ratio of the input's channels to the filter's.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.activation import fused_clamp
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    FileForm,
    OpDef,
    Operands,
    Padding,
    Quantized,
    Sample,
)
from tflgpu.ops.digit_sums import of_filter, of_fours
from tflgpu.ops.facets import Filter, Spread
from tflgpu.ops.items import each_row
from tflgpu.ops.products import check_bias, finish, floats, needed, take
from tflgpu.ops.quantized import Hybrid, OnTheFly, Rounding
from tflgpu.ops.windows import (
    Window,
    WindowAttrs,
    conv_zeros,
    pad_image,
    place,
    trimmed,
    unseen_products,
    window_positions,
)

# Columns are made for so many bytes at a time, to stay in the caches and out of memory trouble.
_BLOCK_BYTES = 4 << 20


def parse_conv(fields: Fields) -> WindowAttrs:
    """Options of CONV_2D and DEPTHWISE_CONV_2D.

    Raises:
        ModelError: a stride or dilation is below 1.
        UnsupportedError: the fused activation is defined by no kernel.
    """
    return WindowAttrs(
        stride_h=fields.integer("stride_h", minimum=1),
        stride_w=fields.integer("stride_w", minimum=1),
        padding=fields.padding(),
        activation=fused_clamp(fields),
        dilation_h=fields.integer("dilation_h_factor", 1, minimum=1),
        dilation_w=fields.integer("dilation_w_factor", 1, minimum=1),
    )


def _infer(attributes: WindowAttrs, operands: Operands) -> list[TensorSpec]:
    op = "CONV_2D"
    given = take(op, operands, ("input", "filter", "bias"), optional=1)
    image = needed(op, given[0], "input", 4, batch=1)
    weights = needed(op, given[1], "filter", 4, beside=image)
    channels, (out, height, width, inner) = image.shape[3], weights.shape
    if channels % inner:
        raise ModelError(
            f"{op}: the filter has {inner} channels, which do not divide the input's {channels}"
        )
    if out % (channels // inner):
        raise ModelError(
            f"{op}: {out} output channels do not divide into {channels // inner} groups "
            f"({channels} input channels, {inner} of the filter)"
        )
    check_bias(op, given[2], out)
    window = place(op, attributes, image.shape, (height, width), least=0)
    return [TensorSpec((image.shape[0], window.out_h, window.out_w, out), image.dtype)]


def _reference(attributes: WindowAttrs, arrays: Arrays) -> list[Array]:
    op = "CONV_2D"
    image, weights = floats(op, arrays[0]), floats(op, arrays[1])
    bias = arrays[2] if len(arrays) > 2 else None
    window = place(op, attributes, image.shape, (weights.shape[1], weights.shape[2]), least=0)
    if not (window.out_h and window.out_w):
        shape = (image.shape[0], window.out_h, window.out_w, weights.shape[0])
        return [finish(np.empty(shape, image.dtype), bias, attributes.activation, arrays[0])]
    window, rows, columns = trimmed(window, image.shape[1], image.shape[2])
    unseen = unseen_products(weights, rows, columns, 0)
    weights = weights[:, rows, columns]
    sums = np.empty((image.shape[0], window.out_h, window.out_w, weights.shape[0]), image.dtype)
    out, inner = weights.shape[0], weights.shape[3]
    groups = image.shape[3] // inner
    per_group = out // groups
    for group in range(groups):
        channels = slice(group * inner, (group + 1) * inner)
        filters = slice(group * per_group, (group + 1) * per_group)
        _convolve(image[..., channels], weights[filters], window, sums[..., filters])
    if unseen.any():
        sums += unseen
    return [finish(sums, bias, attributes.activation, arrays[0])]


def _convolve(image: Array, weights: Array, window: Window, sums: Array) -> None:
    """Write the sums of one group: pixels as rows of a matrix, taps and channels as columns."""
    padded = pad_image(image, window)
    out, taps_h, taps_w, inner = weights.shape
    matrix = weights.reshape(out, -1).T
    batch, height, width = sums.shape[:3]
    depth = taps_h * taps_w * inner
    s0, sy, sx, sc = padded.strides
    columns = as_strided(
        padded,
        (batch, height, width, taps_h, taps_w, inner),
        (
            s0,
            sy * window.stride_h,
            sx * window.stride_w,
            sy * window.dilation_h,
            sx * window.dilation_w,
            sc,
        ),
        writeable=False,
    )
    rows = max(1, _BLOCK_BYTES // (4 * width * depth))
    for n in range(batch):
        for y in range(0, height, rows):
            block = columns[n, y : y + rows].reshape(-1, depth)
            sums[n, y : y + rows] = (block @ matrix).reshape(-1, width, out)


def conv_sample(
    id: str,
    image: tuple[int, int, int, int],
    filter: tuple[int, int, int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: Padding = Padding.SAME,
    activation: Activation = Activation.NONE,
    bias: bool = True,
    const: bool = True,
) -> Sample:
    """A case of CONV_2D with (height, width) pairs."""
    fields = {
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": padding.value,
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "fused_activation_function": activation.value,
    }
    args = (Arg(image), Arg(filter, const=const), Arg(filter[:1], const=const))
    return Sample(
        id, fields, args if bias else args[:2], accumulates=filter[1] * filter[2] * filter[3]
    )


def _samples() -> list[Sample]:
    case, valid = conv_sample, Padding.VALID
    return [
        case("plain", (1, 7, 11, 5), (6, 3, 3, 5)),
        case("aligned", (1, 8, 8, 8), (16, 3, 3, 8), activation=Activation.RELU),
        case("valid", (2, 9, 7, 3), (5, 3, 2, 3), padding=valid, activation=Activation.RELU6),
        case("stride2", (1, 13, 11, 3), (9, 3, 3, 3), stride=(2, 2)),
        case("stride2_even", (1, 14, 10, 4), (8, 3, 3, 4), stride=(2, 2)),
        case("uneven", (1, 11, 13, 2), (3, 5, 2, 2), stride=(3, 1), padding=valid),
        case("dilated", (1, 13, 9, 3), (4, 3, 3, 3), dilation=(2, 3)),
        case("dilated_valid", (1, 11, 17, 5), (7, 3, 3, 5), dilation=(3, 2), padding=valid),
        case("pointwise", (2, 5, 7, 13), (11, 1, 1, 13), activation=Activation.RELU_N1_TO_1),
        case("pointwise_stride", (1, 7, 5, 9), (10, 1, 1, 9), stride=(2, 2)),
        case("pointwise_deep", (1, 3, 5, 131), (67, 1, 1, 131)),
        case("one_pixel", (1, 1, 1, 17), (19, 1, 1, 17)),
        case("one_pixel_3x3", (3, 1, 1, 5), (4, 3, 3, 5)),
        case("to_one_pixel", (1, 5, 7, 6), (10, 5, 7, 6), padding=valid),
        case("one_channel", (1, 9, 5, 1), (1, 3, 3, 1)),
        case("no_bias", (1, 5, 7, 3), (4, 3, 3, 3), bias=False),
        case("groups2", (1, 7, 5, 6), (10, 3, 3, 3), activation=Activation.RELU),
        case("groups_aligned", (1, 5, 5, 16), (8, 3, 3, 8), stride=(2, 2)),
        case("groups_wide", (1, 3, 5, 64), (72, 2, 3, 32), activation=Activation.RELU6),
        case("groups_wide_one_pixel", (1, 1, 1, 96), (96, 1, 1, 32)),
        case("groups_single", (1, 5, 7, 5), (10, 3, 3, 1)),
        case("runtime_filter", (1, 5, 7, 6), (7, 3, 3, 6), const=False),
        case("tanh", (1, 5, 3, 3), (5, 2, 2, 3), activation=Activation.TANH),
        case("wide", (1, 3, 37, 7), (21, 1, 5, 7)),
    ]


def _spread(weights: Array, channels: int) -> Spread | None:
    out, inner = weights.shape[0], weights.shape[3]
    groups = channels // inner

    def spread(numbers: Array) -> Array:
        # Output channels of one group, which read the same input channels, lie together.
        return np.repeat(numbers.reshape(groups, inner), out // groups, axis=0)[:, None, None, :]

    return spread


def _hybrid(node: Node) -> Hybrid:
    """An image has one range. XNNPACK takes constant filters of bytes, and to it one of one pixel
    is a matrix, unless there are groups: each pixel of the image has a range then. LiteRT's own
    kernel takes the others, those of 4 bits among them, and asks whether scales differ."""
    image, filter_ = node.input(0), node.input(1)
    is_grouped = filter_.shape[3] != image.shape[3]
    if filter_.dtype is not DType.I8 or filter_.contents is None or filter_.packed is not None:
        is_one = filter_.quant is None or len(set(filter_.quant.scale)) == 1
        rounding = Rounding.SYMMETRIC if is_one and not is_grouped else Rounding.ASYMMETRIC
        return Hybrid((OnTheFly((1, 2, 3), rounding),))
    strides: tuple[int, ...] = (node.attrs.stride_h, node.attrs.stride_w)
    is_pixel = filter_.shape[1:3] == strides == (1, 1) and filter_.shape != (1, 1, 1, 1)
    axes = (3,) if is_pixel and not is_grouped else (1, 2, 3)
    return Hybrid((OnTheFly(axes, Rounding.EVEN),))


_ROLES = Filter(out=0, spread=_spread, zeros=conv_zeros, pads="pads")

OPS = (
    OpDef(
        "CONV_2D",
        parse_conv,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=8),
        generate=draws.conv,
        batch=each_row(0),
        positions=window_positions,
        arithmetic=Arithmetic(activation_field="activation", filter=_ROLES),
        quantized=Quantized(hybrid=_hybrid, digits=of_filter(_ROLES, products=True, own=of_fours)),
    ),
)
