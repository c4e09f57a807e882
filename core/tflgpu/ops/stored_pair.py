"""STORED_PAIR: the results of TFLite's kernels for two quantized numbers, computed from real ones.

No file has this op. A sum or a product that lies between two steps is rounded by the arithmetic of
the kernel, not as the real result would be: XNNPACK adds numbers that are multiplied by whole ones
and shifts the sum, others round twice (`tflgpu.ops.fixed_point`). The float view of a quantized
model (`tflgpu.passes.float_view`) puts this op in the place of ADD, SUB, MUL, SQUARED_DIFFERENCE
and PRELU.

Sources: XNNPACK's `src/microparams-init.c` (xnn_init_qs8_add_minmax_params and _mul_) with its
`vadd` and `vmul` microkernels, which LiteRT takes by default for 8 bits; TFLite's
`kernels/squared_difference.cc`, `kernels/internal/reference/prelu.h`, and of 16 bits
`kernels/add.cc`, `sub.cc` and `mul.cc`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Node
from tflgpu.ops.axes import present
from tflgpu.ops.base import Activation, Arg, Arrays, Draw, OpDef, Sample, graph_attributes
from tflgpu.ops.elementwise import BYTES, QUANTIZED, infer_broadcast
from tflgpu.ops.fixed_point import Multiplier, times
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.ops.quantized import Replacement

OP = "STORED_PAIR"
#: Bits behind the point of the steps that SQUARED_DIFFERENCE takes apart, and of 16-bit sums.
POINT = 7
WIDE_POINT = 15


class How(enum.Enum):
    """The arithmetic; ``numbers`` are those of `StoredPair`."""

    SUM = "steps times two whole numbers, added, shifted to the right by the third, halves up"
    PRODUCT = "the product of steps times ``factor`` in f32, halves to the even step"
    SQUARE = "the square of a difference: three multipliers"
    ADDED = "steps shifted to the left: a multiplier each, added, a third multiplier"
    SUBTRACTED = "likewise, the second taken off the first"
    ALIGNED = "as ADDED, but steps are shifted by fewer bits in the place of products to the right"
    MULTIPLIED = "the product of steps times one multiplier"
    PRELU = "positive steps times one multiplier, products of others times the second"


#: Of 16 bits.
SUMS = (How.ADDED, How.SUBTRACTED, How.ALIGNED)


@attrs.frozen
class StoredPair:
    """``numbers`` are values and shifts of multipliers in turn, or those of a SUM; ``result`` has
    the limits of its activation too."""

    how: How
    left: QuantizeAndDequantize
    right: QuantizeAndDequantize
    result: QuantizeAndDequantize
    numbers: tuple[int, ...] = ()
    factor: float = 0.0

    @property
    def multipliers(self) -> tuple[Multiplier, ...]:
        """Of all but a SUM and a PRODUCT."""
        pairs = zip(self.numbers[::2], self.numbers[1::2], strict=True)
        return tuple(Multiplier(value, shift) for value, shift in pairs)


def _scales(node: Node) -> tuple[np.float32, np.float32, np.float32]:
    quants = [v.quant for v in (node.input(0), node.input(1), node.outputs[0])]
    a, b, y = (np.float32(q.scale[0]) for q in quants if q is not None)
    return a, b, y


def _pair(
    node: Node,
    how: How,
    numbers: tuple[int, ...] = (),
    factor: float = 0.0,
    activation: Activation = Activation.NONE,
) -> Replacement | None:
    result = QuantizeAndDequantize.clamped(node.outputs[0], activation)
    if result is None:
        return None
    left, right = (QuantizeAndDequantize.of_value(node.input(i)) for i in range(2))
    return Replacement(OP, StoredPair(how, left, right, result, numbers, factor))


def _stored_type(node: Node) -> DType | None:
    """That of both operands and the result, which have scales; None where they differ."""
    dtype = node.outputs[0].dtype
    alike = all(v.dtype is dtype and v.quant for v in (node.input(0), node.input(1)))
    return dtype if alike else None


def _multipliers(*reals: float) -> tuple[int, ...]:
    """Values and shifts in turn; none where a number is not finite."""
    if not all(math.isfinite(real) for real in reals):
        return ()
    found = [Multiplier.of(real) for real in reals]
    return tuple(n for m in found for n in (m.value, m.shift))


def sum_numbers(a: np.float32, b: np.float32, y: np.float32, sign: int) -> tuple[int, ...] | None:
    """Of operands' scales and the result's; None where XNNPACK takes none of such."""
    ratios = [a / y, b / y]
    largest = float(max(ratios))
    if not 2.0**-10 <= largest < 2.0**8:
        return None
    shift = 20 - (math.frexp(largest)[1] - 1)
    left, right = (int(np.rint(math.ldexp(float(r), shift))) for r in ratios)
    return left, sign * right, shift


def of_sum(sign: int) -> Callable[[Node], Replacement | None]:
    """`Quantized.results` of ADD, or with a sign of -1 of SUB."""

    def as_stored(node: Node) -> Replacement | None:
        if _stored_type(node) is DType.I16:
            return _wide_sum(node, sign)
        if _stored_type(node) not in BYTES:
            return None
        numbers = sum_numbers(*_scales(node), sign)
        if numbers is None:
            return None
        return _pair(node, How.SUM, numbers, activation=node.attrs.activation)

    return as_stored


def _wide_sum(node: Node, sign: int) -> Replacement | None:
    """Of scales that are all powers of two TFLite has another sum, where the file asks for it."""
    scales = [float(s) for s in _scales(node)]
    if _has_zero_points(node) or all(math.frexp(s)[0] == 0.5 for s in scales):
        return None
    a, b, y = scales
    most = 2 * max(a, b)
    how = How.ADDED if sign > 0 else How.SUBTRACTED
    multipliers = _multipliers(a / most, b / most, most / ((1 << WIDE_POINT) * y))
    if not multipliers or multipliers[-1] > 0:
        return None
    # The vectors of LiteRT's optimized kernel; it has none where numbers are broadcast.
    shifts = multipliers[1:4:2]
    if (
        how is How.ADDED
        and node.input(0).shape == node.input(1).shape
        and min(shifts) >= -WIDE_POINT
    ):
        how = How.ALIGNED
    return _pair(node, how, multipliers, activation=node.attrs.activation)


def _wide_product(node: Node) -> Replacement | None:
    a, b, y = _scales(node)
    multiplier = _multipliers(float(a * b / y))
    if _has_zero_points(node) or not multiplier or multiplier[-1] > 0:
        return None
    return _pair(node, How.MULTIPLIED, multiplier, activation=node.attrs.activation)


def _has_zero_points(node: Node) -> bool:
    values = (node.input(0), node.input(1), node.outputs[0])
    return any(v.quant is not None and v.quant.zero_point[0] for v in values)


def product(node: Node) -> Replacement | None:
    """`Quantized.results` of MUL."""
    if _stored_type(node) is DType.I16:
        return _wide_product(node)
    if _stored_type(node) not in BYTES:
        return None
    a, b, y = _scales(node)
    factor = float(np.float32(a * b) / y)
    if not 2.0**-16 <= factor < 2.0**8:
        return None
    return _pair(node, How.PRODUCT, factor=factor, activation=node.attrs.activation)


def squared_difference(node: Node) -> Replacement | None:
    """`Quantized.results` of SQUARED_DIFFERENCE."""
    if _stored_type(node) not in BYTES:
        return None
    a, b, y = (float(s) for s in _scales(node))
    most = 2 * max(a, b)
    reals = (a / most, b / most, most * most / ((1 << (2 * POINT)) * y))
    return _of_reals(node, How.SQUARE, reals, 1 << 16)


def prelu(node: Node) -> Replacement | None:
    """`Quantized.results` of PRELU, whose slopes have 8 bits where the data have 16. Of slopes that
    have 16 as well LiteRT's kernel takes each byte for one, so that half of them are never read."""
    x, slope = node.input(0), node.input(1)
    if x.dtype not in QUANTIZED or x.dtype is not node.outputs[0].dtype:
        return None
    a, b, y = (float(s) for s in _scales(node))
    found = _of_reals(node, How.PRELU, (a / y, a * b / y), 1 << 8)
    if found is None or slope.dtype is not DType.I16:
        return found
    if slope.contents is None or slope.quant is None:
        return None
    given = np.ascontiguousarray(slope.data).astype("<i2").reshape(-1).view(np.int8)
    numbers = given[: slope.elements].reshape(slope.shape).astype(np.float32)
    return attrs.evolve(found, replaced={1: numbers * np.float32(slope.quant.scale[0])})


def _of_reals(node: Node, how: How, reals: Sequence[float], most: int) -> Replacement | None:
    """None where a number shifted to the left might need more than 32 bits; the last factor's is at
    most ``most`` times the largest step."""
    if not all(math.isfinite(real) for real in reals):
        return None
    multipliers = [Multiplier.of(real) for real in reals]
    step = 1 << (8 * node.input(0).dtype.itemsize)
    if any(step << (POINT + m.left) >= 2**31 for m in multipliers[:-1]):
        return None
    if step * most << multipliers[-1].left >= 2**33:
        return None
    numbers = tuple(n for m in multipliers for n in (m.value, m.shift))
    return _pair(node, how, numbers)


def _reference(attributes: StoredPair, arrays: Arrays) -> list[Array]:
    x, y = present(arrays[0]), present(arrays[1])
    a = steps_of(attributes.left, x).astype(np.int64)
    b = steps_of(attributes.right, y).astype(np.int64)
    if attributes.how is How.SUM:
        left, right, shift = attributes.numbers
        steps = np.right_shift(a * left + b * right + (1 << (shift - 1)), shift)
    elif attributes.how is How.PRODUCT:
        steps = np.rint((a * b).astype(np.float32) * np.float32(attributes.factor))
    elif attributes.how in SUMS:
        one, two, three = attributes.multipliers
        bits = WIDE_POINT, WIDE_POINT
        if attributes.how is How.ALIGNED:
            bits = WIDE_POINT + one.shift, WIDE_POINT + two.shift
            one, two = Multiplier(one.value, 0), Multiplier(two.value, 0)
        x1, x2 = times(a << bits[0], one), times(b << bits[1], two)
        steps = times(x1 - x2 if attributes.how is How.SUBTRACTED else x1 + x2, three)
    elif attributes.how is How.MULTIPLIED:
        (one,) = attributes.multipliers
        steps = times(a * b, one)
    elif attributes.how is How.SQUARE:
        one, two, three = attributes.multipliers
        difference = times(a << POINT, one) - times(b << POINT, two)
        steps = times(difference * difference, three)
    else:
        one, two = attributes.multipliers
        steps = np.where(a >= 0, times(a, one), times(a * b, two))
    result = attributes.result
    steps = np.clip(steps, result.low, result.high)
    return [np.asarray(steps * np.float32(result.scale)).astype(x.dtype)]


# Samples


def _sample(
    id: str,
    how: How,
    shapes: Sequence[tuple[int, ...]],
    numbers: tuple[int, ...] = (),
    factor: float = 0.0,
    dtype: DType = DType.I8,
) -> Sample:
    # Scales and steps that f16 holds, so that the same numbers come in any precision.
    left, right, result = (
        QuantizeAndDequantize.of(Quantization((scale,), (zero,)), dtype)
        for scale, zero in ((1 / 16, -3), (1 / 32, 5), (1 / 8, 7))
    )
    attributes = StoredPair(how, left, right, result, numbers, factor)
    return Sample.of(id, attributes, *(Arg(shape, low=-9, high=9) for shape in shapes))


def _samples() -> list[Sample]:
    whole, channels = ((2, 3, 5, 6), (2, 3, 5, 6)), ((1, 5, 7, 3), (3,))
    return [
        _sample("sum", How.SUM, whole, (1 << 20, 1 << 19, 21)),
        _sample("difference", How.SUM, channels, (1 << 19, -(1 << 20), 21)),
        _sample("product", How.PRODUCT, whole, factor=1 / 64),
        _sample("square", How.SQUARE, channels, _multipliers(0.5, 0.25, 2.0**-17)),
        _sample("added", How.ADDED, whole, _multipliers(0.5, 0.2, 2.0**-15), dtype=DType.I16),
        _sample(
            "subtracted",
            How.SUBTRACTED,
            channels,
            _multipliers(0.3, 0.5, 2.0**-14.5),
            dtype=DType.I16,
        ),
        _sample("multiplied", How.MULTIPLIED, channels, _multipliers(0.013), dtype=DType.I16),
        _sample("prelu", How.PRELU, channels, _multipliers(0.5, 1 / 64)),
        _sample("prelu_steep", How.PRELU, whole, _multipliers(3.0, 0.3)),
    ]


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(7) for _ in range(draw.integer(1, 4)))
    other = draw.choice((shape, shape[-1:]))
    left, right = draw.integer(1, 1 << 21), draw.integer(1, 1 << 21)
    return _sample("generated", How.SUM, (shape, other), (left, right, draw.integer(13, 22)))


OPS = (
    OpDef(
        OP,
        graph_attributes,
        infer_broadcast(OP, REALS),
        _reference,
        _samples,
        elementwise=True,
        generate=_generate,
    ),
)
