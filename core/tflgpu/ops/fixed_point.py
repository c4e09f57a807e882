"""Whole numbers times real ones, in 32 bits, as TFLite's reference kernels multiply.

A real factor is a 31-bit fraction and a power of two. Multiplying rounds twice: once where the
upper half of a 64-bit product is taken, once where it is shifted right. Both rules decide to which
side a half goes, so an op that makes TFLite's numbers must round twice as well.

Source: TFLite's `kernels/internal/quantization_util.cc` (QuantizeMultiplier), `kernels/internal/
common.h` (MultiplyByQuantizedMultiplier without TFLITE_SINGLE_ROUNDING, which is how LiteRT is
built) and `kernels/kernel_util.cc` (CalculateActivationRangeQuantized).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Value
from tflgpu.ir.quant import Quantization
from tflgpu.ops.base import Activation
from tflgpu.values import frozen

#: Most bits that a number is shifted to the right; factors that want more are 0.
MOST_RIGHT = 31

_CLAMPS: dict[Activation, tuple[float | None, float | None]] = {
    Activation.NONE: (None, None),
    Activation.RELU: (0.0, None),
    Activation.RELU6: (0.0, 6.0),
    Activation.RELU_N1_TO_1: (-1.0, 1.0),
}


@frozen
class Multiplier:
    """``value * 2 ** (shift - 31)``; ``value`` is 0, or from 2**30 to below 2**31."""

    value: int
    shift: int

    @classmethod
    def of(cls, real: float) -> Multiplier:
        """The closest to a real number, which is not negative.

        Raises:
            ModelError: it is infinite or NaN, as options and quotients of scales of a file may be.
        """
        if not math.isfinite(real):
            raise ModelError(f"no fixed-point number stands for a factor of {real}")
        fraction, shift = math.frexp(real)
        value = math.floor(fraction * 2.0**31 + 0.5)
        if value == 1 << 31:
            value, shift = value >> 1, shift + 1
        return cls(0, 0) if shift < -MOST_RIGHT else cls(value, shift)

    @property
    def left(self) -> int:
        """Bits by which a number is shifted to the left before it is multiplied."""
        return max(self.shift, 0)

    @property
    def right(self) -> int:
        """Bits by which the product is shifted to the right."""
        return max(-self.shift, 0)


def multiply(x: Array, value: Any, left: Any, right: Any) -> Array:
    """``x`` times a `Multiplier`, or many along the last axis, whose parts are given as arrays.

    Args:
        x: Whole numbers that fit 32 bits, also once they are shifted to the left.
        value: `Multiplier.value`.
        left: `Multiplier.left`.
        right: `Multiplier.right`.

    Returns:
        64-bit whole numbers.
    """
    wide = np.left_shift(x.astype(np.int64), left)
    # Rounded to the nearest, halves up.
    high = np.right_shift(wide * np.asarray(value, np.int64) + (1 << 30), 31)
    # Rounded to the nearest, halves away from zero.
    mask = np.left_shift(np.int64(1), right) - 1
    threshold = (mask >> 1) + (high < 0)
    return np.asarray(np.right_shift(high, right) + ((high & mask) > threshold))


def times(x: Array, by: Multiplier) -> Array:
    """``x`` times one factor, as `multiply`."""
    return multiply(x, by.value, by.left, by.right)


def clamp_limits(
    activation: Activation, quantization: Quantization, dtype: DType
) -> tuple[int, int] | str:
    """The least and the largest stored number after a fused activation; or why there are none."""
    if activation not in _CLAMPS:
        return f"a fused {activation.name} is no clamp"
    (scale,), (zero_point,) = quantization.scale, quantization.zero_point
    info = np.iinfo(dtype.numpy)
    low, high = int(info.min), int(info.max)
    least, most = _CLAMPS[activation]
    limits = [low, high]
    for i, bound in enumerate((least, most)):
        if bound is None:
            continue
        # A division of f32, whose result is rounded with halves away from zero.
        steps = float(np.float32(bound) / np.float32(scale))
        if not abs(steps) < 2**31:
            return f"its scale {scale} is too small for the limits of {activation.name}"
        whole = math.floor(abs(steps) + 0.5)
        limits[i] = zero_point + (whole if steps >= 0 else -whole)
    return max(low, limits[0]), min(high, limits[1])


def scaled(value: Value, dtypes: frozenset[DType]) -> Quantization | str:
    """The one scale and zero point of a tensor that holds 8-bit numbers; or why it has none that
    the kernels could use."""
    quant = value.quant
    if value.dtype not in dtypes:
        names = ", ".join(sorted(d.value for d in dtypes))
        return f"tensor {value.name} is {value.dtype.value}, not {names}"
    if quant is None or quant.per_axis:
        return f"tensor {value.name} has {'no scale' if quant is None else 'several scales'}"
    return _usable(value.name, quant, value.dtype) or quant


def _usable(name: str, quant: Quantization, dtype: DType) -> str | None:
    (scale,), (zero_point,) = quant.scale, quant.zero_point
    info = np.iinfo(dtype.numpy)
    if not scale >= float(np.finfo(np.float32).tiny):
        return f"the scale of tensor {name} is {scale}"
    if not info.min <= zero_point <= info.max:
        return f"the zero point of tensor {name} is {zero_point}, which {dtype.value} does not hold"
    return None
