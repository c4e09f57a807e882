"""Constants of real numbers in the form that their file has: 16-bit floats, or whole numbers on a
scale. They are a half or a quarter of the f32 numbers that they stand for, and most of them are
read once: when they are written in the order of a kernel. So they are expanded a piece at a time.
"""

from __future__ import annotations

from typing import Union

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.quant import Quantization
from tflgpu.values import frozen

#: Smaller constants are expanded at once: that costs less than to ask twice.
_SMALL = 1 << 16

#: Of f16's bits: all but the sign; the least that is not finite.
_MAGNITUDE_F16, _INFINITY_F16 = 0x7FFF, 0x7C00


@frozen(eq=False)
class StoredReals:
    """f32 numbers, by what is stored of them.

    Attributes:
        numbers: f16, or the whole numbers of ``quantization``; of any shape.
        quantization: How whole numbers become real ones; None for f16.
    """

    numbers: Array
    quantization: Quantization | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape."""
        return self.numbers.shape

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """Their type, when they are expanded."""
        return np.dtype(np.float32)

    @property
    def is_f16(self) -> bool:
        """Whether f16 holds each of them exactly."""
        return self.quantization is None

    def whole(self) -> Array:
        """All of them, as a new array of f32."""
        if self.quantization is None:
            return self.numbers.astype(np.float32)
        return self.quantization.dequantize(self.numbers)

    def rows(self, start: int, stop: int) -> Array:
        """Those at some indices of the first axis, as a new array of f32."""
        quantization = self.quantization
        if quantization is not None and quantization.per_axis and quantization.axis == 0:
            scale, zero = quantization.scale[start:stop], quantization.zero_point[start:stop]
            quantization = attrs.evolve(quantization, scale=scale, zero_point=zero)
        return StoredReals(self.numbers[start:stop], quantization).whole()

    def largest(self) -> float | None:
        """The largest magnitude; None where some are not finite, and where only all of them
        would tell."""
        if self.quantization is None:
            bits = int(np.max(self.numbers.view(np.uint16) & _MAGNITUDE_F16, initial=0))
            found = float(np.array(bits, np.uint16).view(np.float16))
            return found if bits < _INFINITY_F16 else None
        numbers, quantization = self.numbers, self.quantization
        if quantization.per_axis and quantization.axis:
            return None
        if quantization.per_axis:
            numbers = numbers.reshape(len(numbers), -1)
            ends = numbers.min(1, keepdims=True), numbers.max(1, keepdims=True)
        else:
            ends = numbers.min(keepdims=True), numbers.max(keepdims=True)
        largest = max(float(np.max(np.abs(quantization.dequantize(end)))) for end in ends)
        return largest if np.isfinite(largest) else None


#: What a constant holds.
Contents = Union[Array, StoredReals]


def stored_reals(numbers: Array, quantization: Quantization | None = None) -> Contents:
    """The f32 numbers that stored ones stand for: as they are stored, where they are many."""
    reals = StoredReals(numbers, quantization)
    return reals if numbers.size >= _SMALL else reals.whole()
