"""The results of TFLite's kernels for quotients of 8-bit numbers, where they differ from the
rounded quotient.

It multiplies by a reciprocal and shifts the product to the right, by a number of bits that follows
from where the highest bits of dividend and divisor are. From 32 bits on, for quotients below some
third of a step, the shift is one of as many bits less 32, on all processors: what should become 0
is the largest number that there is, or the lowest; and 0 becomes 1.

Source: TFLite's `kernels/internal/reference/div.h` (DivElementwise) and gemmlowp's
RoundingDivideByPOT; held against LiteRT for all pairs of numbers.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.ops.base import Activation
from tflgpu.ops.elementwise import BYTES
from tflgpu.ops.fixed_point import Multiplier
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize, steps_of
from tflgpu.values import frozen

#: Highest bits apart from which on the shift has 32 bits, for a scale of the result of 1.
APART = 2


@frozen
class StoredQuotient:
    """How operands and result are stored, the result's limits being those of its activation too;
    ``shift`` is that of the factor that makes steps of the result."""

    left: QuantizeAndDequantize
    right: QuantizeAndDequantize
    result: QuantizeAndDequantize
    shift: int

    @classmethod
    def of(cls, node: Node, activation: Activation) -> StoredQuotient | None:
        """For a node of two quantized operands; None where another kernel computes it."""
        a, b, y = node.input(0), node.input(1), node.outputs[0]
        if y.dtype not in BYTES or any(v.dtype is not y.dtype for v in (a, b)):
            return None
        if a.quant is None or b.quant is None or y.quant is None:
            return None
        result = QuantizeAndDequantize.clamped(y, activation)
        if result is None:
            return None
        scales = [float(np.float32(q.scale[0])) for q in (a.quant, b.quant, y.quant)]
        return cls(
            QuantizeAndDequantize.of_value(a),
            QuantizeAndDequantize.of_value(b),
            result,
            Multiplier.of(scales[0] / (scales[1] * scales[2])).shift,
        )


def divide(stored: StoredQuotient, a: Array, b: Array) -> Array:
    """The real numbers that TFLite's quotients of real numbers stand for, in f32."""
    steps, by = steps_of(stored.left, a), steps_of(stored.right, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = steps_of(stored.result, a.astype(np.float32) / b.astype(np.float32))
    signed = np.where(by < 0, -steps, steps)
    # Of a negative number the highest bit that is no sign.
    size = np.where(signed < 0, -signed - 1, signed)
    lost = _highest_bit(np.abs(by)) - _highest_bit(size) - stored.shift >= APART
    beyond = np.where(signed > 0, stored.result.high, stored.result.low)
    least = np.clip(1, stored.result.low, stored.result.high)
    found = np.where(lost, np.where(signed == 0, least, beyond), found)
    return np.asarray(found * np.float32(stored.result.scale), np.float32)


def _highest_bit(size: Array) -> Array:
    """Of whole numbers in f32; -1 for 0."""
    return np.frexp(size)[1] - 1
