"""DEPTHWISE_CONV_2D, versions 1-7.

Operands: input NHWC, filter [1, height, width, channels * multiplier], and a bias that may be
absent. Output channel c * multiplier + m filters input channel c. As TFLite does, the
multiplier is taken from the shapes; the ``depth_multiplier`` option is not read.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    FileForm,
    OpDef,
    Operands,
    Padding,
    Quantized,
    Sample,
)
from tflgpu.ops.conv import parse_conv
from tflgpu.ops.digit_sums import of_filter, of_fours
from tflgpu.ops.facets import Filter, Spread
from tflgpu.ops.items import each_row
from tflgpu.ops.products import check_bias, finish, floats, needed, take
from tflgpu.ops.quantized import Hybrid, OnTheFly, Rounding
from tflgpu.ops.windows import (
    WindowAttrs,
    conv_zeros,
    pad_image,
    place,
    tap_view,
    trimmed,
    unseen_products,
    window_positions,
)

# Rows are finished in blocks of so many bytes, which stay in a core's cache over all taps.
_BLOCK_BYTES = 128 << 10


def _infer(attributes: WindowAttrs, operands: Operands) -> list[TensorSpec]:
    op = "DEPTHWISE_CONV_2D"
    given = take(op, operands, ("input", "filter", "bias"), optional=1)
    image = needed(op, given[0], "input", 4, batch=1)
    weights = needed(op, given[1], "filter", 4, beside=image)
    one, height, width, out = weights.shape
    if one != 1:
        raise ModelError(f"{op}: the filter has shape {list(weights.shape)}; it must start with 1")
    if out % image.shape[3]:
        raise ModelError(
            f"{op}: the filter's {out} channels are no multiple of the input's {image.shape[3]}"
        )
    check_bias(op, given[2], out)
    window = place(op, attributes, image.shape, (height, width), least=0)
    return [TensorSpec((image.shape[0], window.out_h, window.out_w, out), image.dtype)]


def _reference(attributes: WindowAttrs, arrays: Arrays) -> list[Array]:
    op = "DEPTHWISE_CONV_2D"
    image, weights = floats(op, arrays[0]), floats(op, arrays[1])
    bias = arrays[2] if len(arrays) > 2 else None
    window = place(op, attributes, image.shape, (weights.shape[1], weights.shape[2]), least=0)
    if not (window.out_h and window.out_w):
        shape = (image.shape[0], window.out_h, window.out_w, weights.shape[3])
        return [finish(np.empty(shape, image.dtype), bias, attributes.activation, arrays[0])]
    window, rows_seen, columns_seen = trimmed(window, image.shape[1], image.shape[2])
    unseen = unseen_products(weights, rows_seen, columns_seen, 3)
    weights = weights[:, rows_seen, columns_seen]
    out = weights.shape[3]
    if out > image.shape[3]:
        image = np.repeat(image, out // image.shape[3], axis=3)
    padded = pad_image(image, window)
    sums = np.zeros((image.shape[0], window.out_h, window.out_w, out), image.dtype)
    if unseen.any():
        sums += unseen
    taps = [
        (tap_view(padded, window, i, j), weights[0, i, j])
        for i in range(window.kernel_h)
        for j in range(window.kernel_w)
    ]
    rows = max(1, _BLOCK_BYTES // (4 * window.out_w * out))
    product = np.empty((min(rows, window.out_h), window.out_w, out), image.dtype)
    for n in range(image.shape[0]):
        for y in range(0, window.out_h, rows):
            block = sums[n, y : y + rows]
            scratch = product[: block.shape[0]]
            for seen, weight in taps:
                np.multiply(seen[n, y : y + rows], weight, out=scratch)
                block += scratch
    return [finish(sums, bias, attributes.activation, arrays[0])]


def depthwise_sample(
    id: str,
    image: tuple[int, int, int, int],
    kernel: tuple[int, int],
    multiplier: int = 1,
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: Padding = Padding.SAME,
    activation: Activation = Activation.NONE,
    bias: bool = True,
    const: bool = True,
) -> Sample:
    """A case of DEPTHWISE_CONV_2D with (height, width) pairs."""
    fields = {
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": padding.value,
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "depth_multiplier": multiplier,
        "fused_activation_function": activation.value,
    }
    out = image[3] * multiplier
    args = (
        Arg(image),
        Arg((1, *kernel, out), const=const),
        Arg((out,), const=const),
    )
    return Sample(id, fields, args if bias else args[:2], accumulates=kernel[0] * kernel[1])


def _samples() -> list[Sample]:
    case, valid = depthwise_sample, Padding.VALID
    return [
        case("plain", (1, 7, 11, 5), (3, 3)),
        case("aligned", (1, 8, 8, 8), (3, 3), activation=Activation.RELU6),
        case("valid", (2, 9, 7, 3), (3, 2), padding=valid, activation=Activation.RELU),
        case("stride2", (1, 13, 11, 6), (3, 3), stride=(2, 2)),
        case("stride2_even", (1, 10, 14, 4), (3, 3), stride=(2, 2)),
        case("stride3", (1, 11, 13, 3), (5, 5), stride=(3, 3), padding=valid),
        case("uneven", (1, 11, 9, 7), (2, 5), stride=(1, 1)),
        case("dilated2", (1, 13, 9, 5), (3, 3), dilation=(2, 2)),
        case("dilated3_valid", (1, 11, 17, 4), (3, 3), dilation=(3, 2), padding=valid),
        case("multiplier2", (1, 5, 7, 3), (3, 3), 2),
        case("multiplier3", (2, 7, 5, 5), (3, 3), 3, stride=(2, 2), activation=Activation.RELU),
        case("multiplier4", (1, 5, 5, 2), (3, 3), 4),
        case("from_one_channel", (1, 7, 5, 1), (3, 3), 9),
        case("multiplier_dilated", (1, 9, 9, 2), (3, 3), 2, dilation=(2, 2)),
        case("one_pixel", (3, 1, 1, 17), (3, 3)),
        case("pointwise", (1, 5, 7, 6), (1, 1), activation=Activation.RELU_N1_TO_1),
        case("to_one_pixel", (1, 7, 7, 10), (7, 7), padding=valid),
        case("large", (1, 9, 7, 3), (9, 7)),
        case("large_dilated", (1, 17, 19, 3), (9, 7), dilation=(2, 3)),
        case("no_bias", (1, 7, 5, 9), (3, 3), bias=False),
        case("runtime_filter", (1, 5, 7, 6), (3, 3), const=False),
        case("wide", (1, 2, 37, 13), (3, 5)),
        case("tanh", (1, 5, 3, 3), (3, 3), activation=Activation.TANH),
    ]


def _spread(weights: Array, channels: int) -> Spread | None:
    multiplier = weights.shape[3] // channels
    return lambda numbers: np.repeat(numbers, multiplier)


_ROLES = Filter(out=3, spread=_spread, zeros=conv_zeros, pads="pads")

OPS = (
    OpDef(
        "DEPTHWISE_CONV_2D",
        parse_conv,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=7),
        generate=draws.depthwise,
        batch=each_row(0),
        positions=window_positions,
        arithmetic=Arithmetic(activation_field="activation", filter=_ROLES),
        quantized=Quantized(
            digits=of_filter(_ROLES, own=of_fours),
            hybrid=lambda node: Hybrid((OnTheFly((1, 2, 3), Rounding.ASYMMETRIC),)),
        ),
    ),
)
