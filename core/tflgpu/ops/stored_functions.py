"""Functions of one quantized tensor that LiteRT's kernels compute on whole numbers with roundings
of their own.

SQRT cuts the rest off instead of rounding. A multiplication by a factor below a half rounds twice
(`tflgpu.ops.fixed_point`), and what was nearly a half after the first time goes up after the
second: 0.253 of a step becomes 1. XNNPACK's LEAKY_RELU multiplies 8-bit numbers by 256ths. So one
number in four may be a step off from the rounded result. Where that is so, the node becomes a
QUANTIZED_TABLE.

Sources: LiteRT's `kernels/elementwise.cc` (AbsEvalQuantized, RsqrtEvalQuantized; SQRT was
measured), `kernels/internal/reference/reference_ops.h` (ReluX), `leaky_relu.h` (QuantizeLeakyRelu);
XNNPACK's `vlrelu` microkernels, measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops.fixed_functions import inverse_root
from tflgpu.ops.fixed_point import Multiplier, multiply, times
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize, steps_of
from tflgpu.ops.quantized import Replacement
from tflgpu.ops.quantized_table import OP as TABLE
from tflgpu.ops.quantized_table import QuantizedTable

_STORED = frozenset({DType.I8, DType.U8, DType.I16})
#: Of 8-bit results between the ends, a smaller share that differs is halves which two ways of
#: rounding send apart. For these a function that joins its neighbours is not given up for a table.
_FEW = 0.01
#: Bits after the point of the roots that RSQRT multiplies.
_ROOT_BITS = 20

#: Node, whole steps of the operand, in int64, the operand's scale and the result's -> those of the
#: result, whole numbers or infinite, not clamped.
Steps = Callable[[Node, Array, float, float], Array]


def by_steps(
    stored: Steps, real: Callable[[Any, Array], Any], *, converts: bool = False, few: float = _FEW
) -> Callable[[Node], Union[Replacement, None]]:
    """`Quantized.results` of a function of one operand.

    Args:
        stored: What LiteRT makes of whole steps.
        real: Attributes and f32 numbers -> the function of them, which is rounded otherwise.
        converts: Whether the result may be of another type than the operand.
        few: Of 8-bit results, the share up to which others than the rounded ones make no table.
    """

    def as_stored(node: Node) -> Replacement | None:
        x, y = node.input(0), node.outputs[0]
        if not {x.dtype, y.dtype} <= _STORED or x.quant is None or y.quant is None:
            return None
        if x.dtype is not y.dtype and not converts:
            return None
        operand = QuantizeAndDequantize.of_value(x)
        result = QuantizeAndDequantize.of_value(y)
        steps = np.arange(operand.low, operand.high + 1)
        with np.errstate(all="ignore"):
            made = stored(node, steps, operand.scale, result.scale)
            numbers = steps.astype(np.float32) * np.float32(operand.scale)
            rounded = steps_of(result, np.asarray(real(node.attrs, numbers), np.float32))
        inside = (made > result.low) & (made < result.high)
        made = np.clip(made, result.low, result.high)
        share = 0.0 if DType.I16 in (x.dtype, y.dtype) else few
        is_few = np.count_nonzero(made != rounded) <= share * np.count_nonzero(inside)
        if is_few and not np.any(np.abs(made - rounded) > 1):
            return None
        return Replacement(TABLE, QuantizedTable(operand, result.scale), (made.astype(np.int32),))

    return as_stored


def square_root(node: Node, steps: Array, x: float, y: float) -> Array:
    """SQRT of 8 and of 16 bits. LiteRT refuses to run negative numbers; here the largest comes of
    them, as of any NaN that is stored."""
    real = np.maximum(steps, 0).astype(np.float32) * np.float32(x)
    return np.where(steps < 0, np.inf, np.trunc(np.sqrt(real) / np.float32(y)))


def inverse_square_root(node: Node, steps: Array, x: float, y: float) -> Array:
    """RSQRT of 8 bits, of 16 by a table. Of numbers that are not positive as `square_root`; of 0 so
    in LiteRT too."""
    by = Multiplier.of(1.0 / float(np.sqrt(np.float32(x)) * np.float32(y)))
    left, right = max(by.shift - _ROOT_BITS, 0), max(_ROOT_BITS - by.shift, 0)
    roots = [inverse_root(int(step)) for step in np.maximum(steps, 1)]
    shifts = np.array([root.shift + _ROOT_BITS for root in roots])
    ones = np.ones(steps.shape, np.int64)
    values = np.array([root.value for root in roots], np.int64)
    fractions = multiply(ones, values, np.maximum(shifts, 0), np.maximum(-shifts, 0))
    return np.where(steps > 0, multiply(fractions, by.value, left, right), np.inf)


def logarithm(node: Node, steps: Array, x: float, y: float) -> Array:
    """LOG of 8 bits: of what has none the lowest number, and not the highest, as of a NaN."""
    real = steps.astype(np.float32) * np.float32(x)
    found = np.log(np.where(real > 0, real, 1)) * (np.float32(1) / np.float32(y))
    rounded = np.copysign(np.floor(np.abs(found) + np.float32(0.5)), found)
    return np.where(real > 0, rounded, -np.inf)


def absolute(node: Node, steps: Array, x: float, y: float) -> Array:
    """ABS."""
    return _times(np.abs(steps), np.float32(x) / np.float32(y))


def clamped(low: float, high: float) -> Steps:
    """RELU and its kin: rescaled, and then clamped."""

    def stored(node: Node, steps: Array, x: float, y: float) -> Array:
        least, most = (_half_away(np.float32(end) / np.float32(y)) for end in (low, high))
        return np.asarray(np.clip(_times(steps, np.float32(x) / np.float32(y)), least, most))

    return stored


def leaky(node: Node, steps: Array, x: float, y: float) -> Array:
    """LEAKY_RELU: of 8 bits as XNNPACK, which LiteRT takes by default, where that takes it."""
    alpha = np.float32(node.attrs.alpha)
    rise = np.float32(x) / np.float32(y)
    slope = np.float32(rise * alpha)
    if node.input(0).dtype is not DType.I16 and _by_xnnpack(float(rise), float(slope)):
        return _in_256ths(steps, np.where(steps > 0, rise, slope))
    factor = np.float32(x) * alpha / np.float32(y)
    below = _times(-steps if factor < 0 else steps, abs(factor))
    return np.where(steps >= 0, _times(steps, rise), below)


def rescaled(node: Node, steps: Array, x: float, y: float) -> Array:
    """QUANTIZE of what is quantized already: of 8 bits as XNNPACK, where that takes it."""
    rise = np.float32(x) / np.float32(y)
    is_bytes = node.input(0).dtype is node.outputs[0].dtype is not DType.I16
    if is_bytes and 1 / 256 <= rise <= 128:
        return _in_256ths(steps, rise)
    return _times(steps, float(np.float32(x)) / float(np.float32(y)))


def _in_256ths(steps: Array, factor: Any) -> Array:
    """Times a factor that was rounded to whole 256ths, rounded to the nearest with halves up."""
    factors = np.rint(np.float32(256) * factor).astype(np.int64)
    return np.asarray(np.right_shift(steps * factors + (1 << 7), 8))


def _by_xnnpack(rise: float, slope: float) -> bool:
    return 1 / 256 <= rise <= 128 and abs(slope) >= 1 / 256 and -127.99609375 <= slope <= 128


def _times(steps: Array, factor: Any) -> Array:
    """Whole numbers times a factor that is not negative, rounded twice."""
    return times(steps, Multiplier.of(float(factor)))


def _half_away(x: Any) -> float:
    return float(np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x))
