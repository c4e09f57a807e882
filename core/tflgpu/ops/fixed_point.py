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
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Value
from tflgpu.ops.base import Activation, Fields
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


#: The least and the largest number of 8 and of 16 bits.
I8, I16 = (-(1 << 7), (1 << 7) - 1), (-(1 << 15), (1 << 15) - 1)


class TensorScale(NamedTuple):
    """A stored number q stands for ``step * (q - zero)``."""

    step: np.float32
    zero: int


@frozen
class Scales:
    """Types and scales of a node's tensors. Asking for a scale that the file does not give raises
    `UnsupportedError`."""

    op: str
    operands: tuple[tuple[DType, Quantization | None] | None, ...]
    intermediates: tuple[Quantization | None, ...]
    output: Quantization | None

    @classmethod
    def of_fields(cls, fields: Fields) -> Scales:
        """What a node's tensors told (`tflgpu.tflite.tensor_fields`)."""
        return cls(
            fields.op,
            tuple(fields.get("operand_types") or ()),
            tuple(fields.get("intermediate_quantization") or ()),
            fields.get("output_quantization"),
        )

    @property
    def real(self) -> bool:
        """Whether operand 0 holds real numbers, or its type is not known."""
        dtype = self.dtype(0)
        return dtype is None or dtype.is_float

    def has(self, index: int) -> bool:
        """Whether there is such an operand."""
        return index < len(self.operands) and self.operands[index] is not None

    def dtype(self, index: int) -> DType | None:
        """The type of an operand; None where there is none."""
        found = self.operands[index] if self.has(index) else None
        return None if found is None else found[0]

    def check_types(self, wanted: Mapping[int, DType]) -> None:
        """That operands have such types, where they are there.

        Raises:
            UnsupportedError: one has not.
        """
        for index, dtype in wanted.items():
            found = self.dtype(index)
            if found not in (None, dtype):
                assert found is not None
                raise UnsupportedError(
                    f"{self.op} of {self._source}: operand {index} is {found.value}, and TFLite's "
                    f"kernel takes {dtype.value}"
                )

    def of(self, index: int) -> TensorScale:
        """That of an operand."""
        found = self.operands[index] if self.has(index) else None
        return self._one(None if found is None else found[1], f"operand {index}")

    def intermediate(self, index: int) -> TensorScale:
        """That of an intermediate."""
        known = index < len(self.intermediates)
        return self._one(self.intermediates[index] if known else None, f"intermediate {index}")

    @property
    def result(self) -> TensorScale:
        """That of the result."""
        return self._one(self.output, "the result")

    @property
    def _source(self) -> str:
        dtype = self.dtype(0)
        return "nothing" if dtype is None else dtype.value

    def _one(self, quant: Quantization | None, what: str) -> TensorScale:
        if quant is None or quant.per_axis:
            raise UnsupportedError(
                f"{self.op} of {self._source}: {what} has "
                f"{'no scale' if quant is None else 'several scales'}"
            )
        if not quant.scale[0] > 0:
            raise UnsupportedError(f"{self.op} of {self._source}: {what} has scale 0")
        return TensorScale(np.float32(quant.scale[0]), quant.zero_point[0])


def clamped(x: Array, bounds: tuple[int, int]) -> Array:
    """``x``, limited to the smallest and largest number that ``bounds`` gives."""
    return np.asarray(np.clip(x, *bounds))
