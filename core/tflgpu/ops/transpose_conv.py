"""TRANSPOSE_CONV, versions 1-5, and MediaPipe's custom op `Convolution2DTransposeBias`.

Filter OHWI. Input pixel (y, x) adds its products with tap (i, j) to output pixel
(y * stride_h - pad_top + i, x * stride_w - pad_left + j).

TRANSPOSE_CONV is told its output shape, of which a convolution with the same options would make the
input's size; its padding is that of this convolution. Where the model's inputs were resized and the
output shape is a constant of the file, it is refitted: one more pixel in, one more stride out,
which is what XNNPACK does, and so LiteRT's interpreter by default (its own kernel refuses it). The
custom op has no shape operand: SAME gives size * stride, VALID gives (size - 1) * stride + filter.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from tflgpu.errors import DynamicError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import fused_clamp
from tflgpu.ops.axes import const_integers
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Padding,
    Quantized,
    Sample,
)
from tflgpu.ops.digit_sums import of_filter
from tflgpu.ops.facets import Batched, Filter, Items, Work
from tflgpu.ops.items import each_row, first_size, rows_of
from tflgpu.ops.positions import of_items
from tflgpu.ops.products import check_bias, finish, floats, needed, take
from tflgpu.ops.quantized import Hybrid, OnTheFly, Rounding
from tflgpu.ops.windows import out_and_pad
from tflgpu.values import frozen

CUSTOM = "Convolution2DTransposeBias"


@frozen
class TransposeConv:
    """Options of a transposed convolution."""

    stride_h: int
    stride_w: int
    padding: Padding
    activation: Activation = Activation.NONE


def _hybrid(node: Node) -> Hybrid:
    """An image has one range."""
    return Hybrid((OnTheFly((1, 2, 3), Rounding.EVEN, operand=2),))


#: Which operand is what, for each of the two.
ROLES = {
    "TRANSPOSE_CONV": Filter(source=2, weights=1, bias=3, out=0),
    CUSTOM: Filter(source=0, weights=1, bias=2, out=0),
}


@frozen
class Scatter:
    """Where input pixels land: taps along y and x, and the rows and columns cut off before."""

    kernel_h: int
    kernel_w: int
    pad_top: int
    pad_left: int


def scatter_of(node: Node) -> Scatter:
    """The geometry of a transposed convolution's node."""
    weights = node.input(ROLES[node.op].weights).shape
    return _scatter(node.attrs, weights, node.outputs[0].shape)


def _scatter(attributes: TransposeConv, weights: Sequence[int], output: Sequence[int]) -> Scatter:
    _, height, width, _ = weights
    _, top = out_and_pad(output[1], height, attributes.stride_h, attributes.padding)
    _, left = out_and_pad(output[2], width, attributes.stride_w, attributes.padding)
    return Scatter(height, width, top, left)


def _parse(fields: Fields) -> TransposeConv:
    return TransposeConv(
        fields.integer("stride_h", minimum=1),
        fields.integer("stride_w", minimum=1),
        fields.padding(),
        fused_clamp(fields),
    )


def _parse_custom(fields: Fields) -> TransposeConv:
    """The options are the bytes of a C struct: padding (1 SAME, 2 VALID), stride_w, stride_h."""
    if len(fields.custom_options) < 12:
        raise ModelError(
            f"{CUSTOM}: {len(fields.custom_options)} bytes of options, at least 12 needed"
        )
    code, stride_w, stride_h = struct.unpack("<3i", fields.custom_options[:12])
    if code not in (1, 2):
        raise ModelError(f"{CUSTOM}: unknown padding code {code}")
    if stride_w < 1 or stride_h < 1:
        raise ModelError(f"{CUSTOM}: strides {stride_h} and {stride_w} must be at least 1")
    return TransposeConv(stride_h, stride_w, Padding.SAME if code == 1 else Padding.VALID)


def _check(
    op: str, source: Operand | None, weights: Operand | None, bias: Operand | None
) -> tuple[Operand, Operand]:
    image = needed(op, source, "input", 4, batch=1)
    filters = needed(op, weights, "filter", 4, beside=image)
    if image.shape[3] != filters.shape[3]:
        raise ModelError(
            f"{op}: the filter has {filters.shape[3]} input channels, the input {image.shape[3]}"
        )
    check_bias(op, bias, filters.shape[0])
    return image, filters


def _infer(attributes: TransposeConv, operands: Operands) -> list[TensorSpec]:
    op = "TRANSPOSE_CONV"
    shape, weights, source, bias = take(
        op, operands, ("output shape", "filter", "input", "bias"), optional=1
    )
    image, filters = _check(op, source, weights, bias)
    assert shape is not None
    if shape.contents is None:
        raise DynamicError(f"{op}: the output shape is only known while the model runs")
    output = const_integers(op, shape, "output shape", 4)
    if min(output[1:]) < 1 or (output[0], output[3]) != (image.shape[0], filters.shape[0]):
        raise ModelError(
            f"{op}: output shape {list(output)} does not fit a batch of {image.shape[0]} and "
            f"{filters.shape[0]} output channels of the filter"
        )
    meant = _meant(attributes, filters.shape, output)
    if meant != image.shape[1:3]:
        raise ModelError(
            f"{op}: an output shape of {list(output)} belongs to an input of height {meant[0]} and "
            f"width {meant[1]}, and not of {image.shape[1]} and {image.shape[2]}"
        )
    return [TensorSpec(output, image.dtype)]


def _meant(
    attributes: TransposeConv, filters: Sequence[int], output: Sequence[int]
) -> tuple[int, int]:
    """The height and width that a convolution makes of the output: those of the input."""
    spans = filters[1:3] if attributes.padding is Padding.VALID else (1, 1)
    strides = (attributes.stride_h, attributes.stride_w)
    height, width = (
        (size - span) // stride + 1
        for size, span, stride in zip(output[1:3], spans, strides, strict=True)
    )
    return height, width


def _refit(attributes: TransposeConv, operands: Operands, resized: bool) -> dict[int, Array]:
    """The output shape for an input of another batch or size than the file's."""
    shape, weights, source, *_ = (*operands, None, None, None)
    if shape is None or weights is None or source is None or shape.contents is None:
        return {}
    told = shape.data.reshape(-1)
    if not resized or told.size != 4 or weights.rank != 4 or source.rank != 4:
        return {}
    meant = _meant(attributes, weights.shape, [int(n) for n in told])
    strides = (attributes.stride_h, attributes.stride_w)
    sizes = [
        int(old) + stride * (new - known)
        for old, stride, new, known in zip(
            told[1:3], strides, source.shape[1:3], meant, strict=True
        )
    ]
    fitted = np.array([source.shape[0], *sizes, told[3]], shape.data.dtype)
    return {} if np.array_equal(fitted, told) else {0: fitted.reshape(shape.data.shape)}


def _infer_custom(attributes: TransposeConv, operands: Operands) -> list[TensorSpec]:
    given = take(CUSTOM, operands, ("input", "filter", "bias"), optional=1)
    image, filters = _check(CUSTOM, *given)
    strides = (attributes.stride_h, attributes.stride_w)
    if attributes.padding is Padding.SAME:
        height, width = (n * s for n, s in zip(image.shape[1:3], strides, strict=True))
    else:
        height, width = (
            (n - 1) * s + taps
            for n, s, taps in zip(image.shape[1:3], strides, filters.shape[1:3], strict=True)
        )
    return [TensorSpec((image.shape[0], height, width, filters.shape[0]), image.dtype)]


def _reference(attributes: TransposeConv, arrays: Arrays) -> list[Array]:
    op = "TRANSPOSE_CONV"
    output = tuple(int(n) for n in np.asarray(arrays[0]).reshape(-1))
    bias = arrays[3] if len(arrays) > 3 else None
    sums = _transpose(attributes, floats(op, arrays[2]), floats(op, arrays[1]), output)
    return [finish(sums, bias, attributes.activation, arrays[2])]


def _reference_custom(attributes: TransposeConv, arrays: Arrays) -> list[Array]:
    image, weights = floats(CUSTOM, arrays[0]), floats(CUSTOM, arrays[1])
    bias = arrays[2] if len(arrays) > 2 else None
    specs = [Operand(TensorSpec(a.shape, DType.F32)) for a in (image, weights)]
    (output,) = _infer_custom(attributes, specs)
    sums = _transpose(attributes, image, weights, output.shape)
    return [finish(sums, bias, attributes.activation, arrays[0])]


def _transpose(
    attributes: TransposeConv, image: Array, weights: Array, output: Sequence[int]
) -> Array:
    """Sums of a transposed convolution: every tap's products, added where they land."""
    place = _scatter(attributes, weights.shape, output)
    batch, height, width, inner = image.shape
    stride_h, stride_w = attributes.stride_h, attributes.stride_w
    sums = np.zeros((batch, output[1], output[2], weights.shape[0]), image.dtype)
    for i in range(place.kernel_h):
        from_y, to_y = _landing(height, stride_h, i - place.pad_top, output[1])
        for j in range(place.kernel_w):
            from_x, to_x = _landing(width, stride_w, j - place.pad_left, output[2])
            pixels = image[:, from_y, from_x]
            products = pixels.reshape(-1, inner) @ weights[:, i, j].T
            sums[:, to_y, to_x] += products.reshape(*pixels.shape[:3], sums.shape[3])
    return sums


def _landing(size: int, stride: int, shift: int, wanted: int) -> tuple[slice, slice]:
    """Which of ``size`` input pixels land among the ``wanted`` output pixels, and where: input
    pixel y lands on y * stride + shift."""
    first = max(0, -(shift // stride))
    last = min(size - 1, (wanted - 1 - shift) // stride)
    if last < first:
        return slice(0), slice(0)
    start = first * stride + shift
    return slice(first, last + 1), slice(start, (last - first) * stride + start + 1, stride)


def _case(
    id: str,
    image: tuple[int, int, int, int],
    filter: tuple[int, int, int, int],
    size: tuple[int, int],
    *,
    stride: tuple[int, int] = (2, 2),
    padding: Padding = Padding.SAME,
    activation: Activation = Activation.NONE,
    bias: bool = True,
    const: bool = True,
) -> Sample:
    fields = {
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": padding.value,
        "fused_activation_function": activation.value,
    }
    args: list[Arg | None] = [
        Arg.of((image[0], *size, filter[0]), DType.I32),
        Arg(filter, const=const),
        Arg(image),
    ]
    if bias:
        args.append(Arg(filter[:1], const=const))
    version = 4 if activation is not Activation.NONE else 3 if bias else 1
    depth = filter[1] * filter[2] * filter[3]
    return Sample(id, fields, tuple(args), version=version, accumulates=depth)


def _samples() -> list[Sample]:
    valid = Padding.VALID
    return [
        _case("same3x3", (1, 5, 7, 3), (6, 3, 3, 3), (10, 14)),
        _case("same3x3_odd", (1, 5, 7, 5), (4, 3, 3, 5), (9, 13), bias=False),
        _case("same2x2", (2, 3, 5, 6), (5, 2, 2, 6), (6, 10)),
        _case("same4x4", (1, 5, 3, 4), (8, 4, 4, 4), (10, 6), activation=Activation.RELU),
        _case("valid3x3", (1, 5, 7, 3), (7, 3, 3, 3), (11, 15), padding=valid),
        _case("valid_longer", (1, 3, 5, 2), (3, 2, 3, 2), (7, 12), padding=valid, stride=(2, 2)),
        _case("valid2x2", (1, 4, 6, 9), (10, 2, 2, 9), (8, 12), padding=valid, bias=False),
        _case("stride1", (1, 5, 7, 6), (4, 3, 3, 6), (5, 7), stride=(1, 1)),
        _case("stride3", (1, 3, 5, 5), (3, 5, 5, 5), (9, 15), stride=(3, 3)),
        _case("uneven", (1, 5, 3, 2), (5, 3, 5, 2), (5, 9), stride=(1, 3)),
        _case("gaps", (1, 3, 3, 3), (2, 2, 1, 3), (9, 9), stride=(3, 3)),
        _case("pads_differ", (1, 3, 5, 3), (5, 5, 3, 3), (6, 10)),
        _case("one_pixel", (1, 1, 1, 13), (11, 3, 3, 13), (2, 2)),
        _case("one_channel", (1, 7, 5, 16), (1, 2, 2, 16), (14, 10)),
        _case("relu6", (1, 3, 3, 4), (4, 3, 3, 4), (6, 6), activation=Activation.RELU6),
        _case("runtime_filter", (1, 3, 5, 4), (6, 3, 3, 4), (6, 10), const=False),
        _case("too_large_to_unroll", (1, 7, 5, 3), (5, 7, 9, 3), (7, 10), stride=(1, 2)),
    ]


def _custom_case(
    id: str,
    image: tuple[int, int, int, int],
    filter: tuple[int, int, int, int],
    stride: tuple[int, int],
    padding: Padding = Padding.SAME,
    const: bool = True,
) -> Sample:
    options = struct.pack("<3i", 1 if padding is Padding.SAME else 2, stride[1], stride[0])
    args = (Arg(image), Arg(filter, const=const), Arg(filter[:1], const=const))
    depth = filter[1] * filter[2] * filter[3]
    return Sample(id, {}, args, custom_options=options, accumulates=depth)


def _custom_samples() -> list[Sample]:
    return [
        _custom_case("same2x2", (1, 5, 7, 16), (1, 2, 2, 16), (2, 2)),
        _custom_case("same3x3", (1, 5, 3, 8), (8, 3, 3, 8), (2, 2)),
        _custom_case("same3x3_odd", (2, 3, 5, 5), (6, 3, 3, 5), (2, 2)),
        _custom_case("valid3x3", (1, 4, 5, 3), (5, 3, 3, 3), (2, 2), Padding.VALID),
        _custom_case("valid2x2", (1, 3, 4, 7), (2, 2, 2, 7), (2, 2), Padding.VALID),
        _custom_case("uneven", (1, 3, 4, 4), (4, 3, 2, 4), (1, 2)),
        _custom_case("runtime_filter", (1, 3, 5, 16), (1, 2, 2, 16), (2, 2), const=False),
    ]


def _work(node: Node) -> Work:
    """Every element of the input goes to each tap of the filter."""
    roles = ROLES[node.op]
    taps = math.prod(node.input(roles.weights).shape[:3])
    return Work.of(node, 2 * node.input(roles.source).elements * taps)


def _batch(node: Node, items: Items) -> Batched | str:
    return rows_of(node, items, (2,)) or first_size(node, items, 0)


def _left(node: Node) -> bool:
    """Whether XNNPACK leaves it to LiteRT's own kernel: where no input pixel gets to the last row
    or column."""
    roles, (_, height, width, _) = ROLES[node.op], node.outputs[0].shape
    image, filters = node.input(roles.source).shape, node.input(roles.weights).shape
    return bool(
        (image[1] - 1) * node.attrs.stride_h + filters[1] < height
        or (image[2] - 1) * node.attrs.stride_w + filters[2] < width
    )


OPS = (
    OpDef(
        "TRANSPOSE_CONV", _parse, _infer, _reference, _samples, accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=5, refit=_refit),
        arithmetic=Arithmetic(activation_field="activation", filter=ROLES["TRANSPOSE_CONV"]),
        device=OnDevice(work=_work), batch=_batch,
        quantized=Quantized(
            hybrid=_hybrid, digits=of_filter(ROLES["TRANSPOSE_CONV"], own=_left)
        ),
    ),
    OpDef(
        CUSTOM, _parse_custom, _infer_custom, _reference_custom, _custom_samples,
        accuracy=Accuracy.ACCUMULATE, is_custom=True,
        arithmetic=Arithmetic(activation_field="activation", filter=ROLES[CUSTOM]),
        device=OnDevice(work=_work), batch=each_row(0), positions=of_items
    ),
)  # fmt: skip
