"""Shared by ops that sum products of stored i8 numbers: scales, limits, and finishing a sum.

Products are summed in 32 bits, and each output channel has a factor of its own, by which a sum is
brought to the result's scale. Filter and bias are constants, so that it is known beforehand that no
sum needs more than 32 bits.

Source: TFLite's `kernels/kernel_util.cc` (PopulateConvolutionQuantizationParams) and `kernels/
internal/reference/integer_ops/` (conv.h, depthwise_conv.h: ConvPerChannel,
DepthwiseConvPerChannel).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Node, Shape, TensorSpec, Value
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arrays,
    Draw,
    Fields,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Quantized,
    Sample,
    graph_attributes,
)
from tflgpu.ops.conv import parse_conv
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.facets import Work
from tflgpu.ops.fixed_point import (
    Multiplier,
    clamp_limits,
    multiply,
    scaled,
)
from tflgpu.ops.products import check_bias, needed, take
from tflgpu.ops.quantized import Integers
from tflgpu.ops.windows import Window, WindowAttrs, pad_image, place, tap_view, trimmed
from tflgpu.values import frozen

_BYTES = frozenset({DType.I8})
_STEPS = 255  # most that a stored number can differ from the one that stands for 0
RELUS = (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1)


@frozen
class QuantizedSums:
    """The arithmetic; results are clamped to ``low`` and ``high``.

    Attributes:
        window: The options of the op that it stands for; its activation is in the limits.
        source_zero: The stored number that stands for 0 in the input.
        result_zero: The same in the result.
        multipliers: What a sum is multiplied by, for each output channel.
        low: The least result.
        high: The largest.
    """

    window: WindowAttrs
    source_zero: int
    result_zero: int
    multipliers: tuple[Multiplier, ...]
    low: int
    high: int

    @property
    def factors(self) -> tuple[Array, Array, Array]:
        """The multipliers' parts, an array of whole numbers each: value, left, right."""
        parts = [(m.value, m.left, m.right) for m in self.multipliers]
        value, left, right = np.array(parts, np.int32).T
        return value, left, right

    def finish(self, sums: Array, bias: Array | None) -> Array:
        """Sums of products, channels last, as they are stored: i8."""
        total = sums.astype(np.int64)
        if bias is not None:
            total = total + bias.reshape(-1)
        stored = multiply(total, *self.factors) + self.result_zero
        return np.asarray(np.clip(stored, self.low, self.high).astype(np.int8))


def window_of(node: Node) -> Window:
    """Where the filter of a node with such attributes sees its input."""
    _, height, width, _ = node.input(1).shape
    return place(node.op, node.attrs.window, node.input(0).shape, (height, width))


def _arithmetic(
    op: str, window: WindowAttrs, ends: Sequence[Value], scales: Sequence[float], channels: int
) -> Union[QuantizedSums, str]:
    """Of an input and a result, with one scale for the filter or one a channel; or why none."""
    quants = []
    for value in ends:
        quant = scaled(value, _BYTES)
        if isinstance(quant, str):
            return f"{op}: {quant}"
        quants.append(quant)
    x, y = quants
    limits = clamp_limits(window.activation, y, DType.I8)
    if isinstance(limits, str):
        return f"{op}: {limits}"
    if len(scales) not in (1, channels):
        return f"{op}: the filter has {len(scales)} scales for {channels} channels"
    each = [Multiplier.of(x.scale[0] * scale / y.scale[0]) for scale in scales]
    multipliers = tuple(each if len(each) == channels else each * channels)
    return QuantizedSums(window, x.zero_point[0], y.zero_point[0], multipliers, *limits)


def attributes_for(node: Node, out: int) -> Union[QuantizedSums, str]:
    """The arithmetic of a CONV_2D or DEPTHWISE_CONV_2D, whose output channels run along axis
    ``out`` of the filter; or why it is not computed so."""
    weights, bias = node.input(1), node.optional_input(2)
    quant, op = weights.quant, node.op
    if weights.dtype is not DType.I8 or quant is None or any(quant.zero_point):
        return f"{op}: the filter is not i8 with scales and zero points of 0"
    numbers = None if bias is None else bias.data
    if weights.data is None or (bias is not None and numbers is None):
        return f"{op}: the filter or the bias is not a constant"
    if bias is not None and bias.dtype is not DType.I32:
        return f"{op}: the bias is {bias.dtype.value}, not i32"
    if quant.per_axis and quant.axis != out:
        return f"{op}: the filter has scales along axis {quant.axis}, not along its channels"
    ends = (node.input(0), node.outputs[0])
    found = _arithmetic(op, node.attrs, ends, quant.scale, weights.shape[out])
    if isinstance(found, str):
        return found
    # In more bits, so that what is too large is seen.
    others = tuple(axis for axis in range(4) if axis != out)
    sums = np.abs(weights.data.astype(np.int64)).sum(axis=others) * _STEPS
    if numbers is not None:
        sums = sums + np.abs(numbers.astype(np.int64).reshape(-1))
    for most, multiplier in zip(sums.tolist(), found.multipliers, strict=True):
        if most << multiplier.left >= 2**31:
            return f"{op}: its sums may need more than 32 bits"
    return found


def take_sums(
    op: str, attributes: QuantizedSums, operands: Operands, out: int
) -> tuple[Operand, Operand, Window]:
    """Input, filter and window of such an op, checked; a bias is checked as well.

    Raises:
        ModelError: they are of other types or sizes.
        DynamicError: filter or bias are not constants.
    """
    given = take(op, operands, ("input", "filter", "bias"), optional=1)
    image, weights = needed(op, given[0], "input", 4), needed(op, given[1], "filter", 4)
    for operand in (image, weights):
        check_dtype(op, operand.dtype, _BYTES)
    channels = weights.shape[out]
    if channels != len(attributes.multipliers):
        raise ModelError(f"{op}: {len(attributes.multipliers)} multipliers for {channels} channels")
    weights.const(op, "the filter")
    check_bias(op, given[2], channels)
    if given[2] is not None:
        check_dtype(f"{op}: the bias", given[2].dtype, frozenset({DType.I32}))
        given[2].const(op, "the bias")
    window = place(op, attributes.window, image.shape, (weights.shape[1], weights.shape[2]))
    return image, weights, window


def sums_op(
    op: str,
    real: str,
    out: int,
    refused: Callable[[Shape, Shape], str],
    product: Callable[[Array, Array], Array],
    samples: Callable[[], list[Sample]],
    generate: Callable[[Draw], Sample],
) -> OpDef:
    """The op that takes the place of one of real numbers.

    Args:
        op: Its name.
        real: The other's name.
        out: Axis of the filter along which output channels run.
        refused: What is wrong with shapes of the image and of the filter, "" where nothing is.
        product: What a tap sees of the image, [batch, height, width, channels], and the filter
            there, without the axes of taps -> their products, summed over input channels.
        samples: As in `OpDef`.
        generate: As in `OpDef`.
    """

    def infer(attributes: QuantizedSums, operands: Operands) -> list[TensorSpec]:
        image, weights, window = take_sums(op, attributes, operands, out)
        wrong = refused(image.shape, weights.shape)
        if wrong:
            raise ModelError(f"{op}: {wrong}")
        shape = (image.shape[0], window.out_h, window.out_w, weights.shape[out])
        return [TensorSpec(shape, DType.I8)]

    def reference(attributes: QuantizedSums, arrays: Arrays) -> list[Array]:
        image, weights = present(arrays[0]), present(arrays[1])
        window = place(op, attributes.window, image.shape, (weights.shape[1], weights.shape[2]))
        window, rows, columns = trimmed(window, image.shape[1], image.shape[2])
        # In f64, which has every whole number of so many bits, so that sums are exact.
        steps = pad_image(image.astype(np.float64) - attributes.source_zero, window)
        filters = weights[:, rows, columns].astype(np.float64)
        sums: Any = 0
        for i in range(window.kernel_h):
            for j in range(window.kernel_w):
                sums = sums + product(tap_view(steps, window, i, j), filters[:, i, j])
        bias = arrays[2] if len(arrays) > 2 else None
        return [attributes.finish(np.asarray(sums), bias)]

    def work(node: Node) -> Work:
        filters = node.input(1)
        products = filters.elements // filters.shape[out]
        return Work.of(node, 2 * node.outputs[0].elements * products)

    def attributes(node: Node) -> Union[QuantizedSums, str]:
        if refused(node.input(0).shape, node.input(1).shape):
            return f"{real}: it has several groups"
        return attributes_for(node, out)

    return OpDef(
        op,
        graph_attributes,
        infer,
        reference,
        samples,
        accuracy=Accuracy.EXACT,
        quantized=Quantized(stored=True, integers=Integers(real, attributes)),
        generate=generate,
        device=OnDevice(work=work),
    )


def stored_sample(
    plain: Sample,
    channels: int,
    source: tuple[float, int],
    result: tuple[float, int],
    scale: float | None = None,
) -> Sample:
    """A sample of the op that stands for real numbers, with constant filter and bias, in stored
    ones; ``scale`` is that of the whole filter."""
    image, weights, *bias = [a for a in plain.args if a is not None]
    # Scales of neighbours differ by up to 20 times, as those of trained filters do.
    scales = [scale or 0.001 * (1 + (7 * c) % 20) for c in range(channels)]
    ends = [
        Value(0, "", (), DType.I8, quant=Quantization((float(np.float32(step)),), (zero,)))
        for step, zero in (source, result)
    ]
    steps = [float(np.float32(step)) for step in scales]
    attributes = _arithmetic("", parse_conv(Fields("", plain.fields)), ends, steps, channels)
    args = [
        Arg(image.shape, DType.I8, -128, 128),
        Arg(weights.shape, DType.I8, -127, 128, const=True),
        *(Arg((channels,), DType.I32, -4000, 4000, const=True) for _ in bias),
    ]
    return Sample.of(plain.id, attributes, *args, accumulates=plain.accumulates)
