"""Constants of real numbers in the form that their file has: 16-bit floats, or whole numbers on a
scale. They are a half or a quarter of the f32 numbers that they stand for, and most of them are
read once: when they are written in the order of a kernel. So they are expanded a piece at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, Quantization
from tflgpu.values import frozen

#: Constants of fewer elements are expanded at once: that costs less than to ask twice.
LARGE = 1 << 12

#: Rows that are looked at together.
_ROWS = 64

#: Of f16's bits: all but the sign; the least that is not finite.
_MAGNITUDE_F16, _INFINITY_F16 = 0x7FFF, 0x7C00


@frozen(eq=False)
class BlockScales:
    """Scales of blocks along the last axis.

    Attributes:
        scales: One a block, of shape [..., blocks]; f16 or f32.
        size: Elements of a block.
    """

    scales: Array
    size: int

    def dequantize(self, stored: Array) -> Array:
        """The real values of whole numbers, as f32 of the same shape."""
        blocks = stored.reshape(*self.scales.shape, self.size).astype(np.float32)
        blocks *= self.scales.astype(np.float32)[..., np.newaxis]
        return blocks.reshape(stored.shape)

    def rows(self, start: int, stop: int) -> BlockScales:
        """Those of some indices of the first axis."""
        return BlockScales(self.scales[start:stop], self.size)

    def largest(self, stored: Array) -> float:
        """The largest magnitude of the real values of whole numbers."""
        sizes = np.abs(stored.reshape(*self.scales.shape, self.size).astype(np.int16)).max(-1)
        return float(np.max(sizes * np.abs(self.scales.astype(np.float32)), initial=0.0))


@frozen(eq=False)
class StoredReals:
    """f32 numbers, by what is stored of them.

    Attributes:
        numbers: f16, or the whole numbers of ``quantization``; of any shape.
        quantization: How whole numbers become real ones; None for f16.
        in_nibbles: Whether ``numbers`` are bytes with two whole numbers each, neighbours of the
            last axis, the first in the lower bits.
    """

    numbers: Array
    quantization: Quantization | BlockScales | None = None
    in_nibbles: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape."""
        *outer, inner = self.numbers.shape
        return (*outer, inner * 2) if self.in_nibbles else self.numbers.shape

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
        return self.quantization.dequantize(self.stored())

    def rows(self, start: int, stop: int) -> Array:
        """Those at some indices of the first axis, as a new array of f32."""
        quantization = self.quantization
        if isinstance(quantization, BlockScales):
            quantization = quantization.rows(start, stop)
        elif quantization is not None and quantization.per_axis and quantization.axis == 0:
            scale, zero = quantization.scale[start:stop], quantization.zero_point[start:stop]
            quantization = attrs.evolve(quantization, scale=scale, zero_point=zero)
        return StoredReals(self.numbers[start:stop], quantization, self.in_nibbles).whole()

    def table(self, dtype: np.dtype[Any]) -> Array | None:
        """What each of the 256 bytes stands for, as ``dtype``; None unless each number is a byte
        and all have one scale. It is looked into for less than the arithmetic takes, above all
        where numbers become f16."""
        scale, kind = self.quantization, self.numbers.dtype
        is_plain = isinstance(scale, Quantization) and not scale.per_axis and not self.in_nibbles
        if not is_plain or kind.itemsize != 1:
            return None
        every = StoredReals(np.arange(256, dtype=np.uint8).view(kind), scale)
        with np.errstate(over="ignore"):
            return every.whole().astype(dtype)

    def largest(self) -> float | None:
        """The largest magnitude; None where some are not finite, and where only all of them
        would tell."""
        if self.quantization is None:
            bits = int(np.max(self.numbers.view(np.uint16) & _MAGNITUDE_F16, initial=0))
            found = float(np.array(bits, np.uint16).view(np.float16))
            return found if bits < _INFINITY_F16 else None
        numbers, quantization = self.numbers, self.quantization
        if isinstance(quantization, BlockScales):
            return max(
                quantization.rows(start, start + _ROWS).largest(self.stored(start, start + _ROWS))
                for start in range(0, len(numbers), _ROWS)
            )
        if quantization.per_axis and quantization.axis:
            return None
        if quantization.per_axis:
            numbers = numbers.reshape(len(numbers), -1)
            ends = numbers.min(1, keepdims=True), numbers.max(1, keepdims=True)
        else:
            ends = numbers.min(keepdims=True), numbers.max(keepdims=True)
        largest = max(float(np.max(np.abs(quantization.dequantize(end)))) for end in ends)
        return largest if np.isfinite(largest) else None

    def stored(self, start: int = 0, stop: int | None = None) -> Array:
        """What is stored for some indices of the first axis, a number an element."""
        if not self.in_nibbles:
            return self.numbers if stop is None else self.numbers[start:stop]
        stored = self.numbers[start:stop]
        pairs = np.empty((*stored.shape, 2), np.int8)
        pairs[..., 0] = (stored << 4).view(np.int8)
        pairs[..., 1] = stored.view(np.int8)
        pairs >>= 4
        return pairs.reshape(*stored.shape[:-1], -1)


#: What a constant holds.
ConstantData = Union[Array, StoredReals]


def stacked(constants: Sequence[ConstantData]) -> ConstantData:
    """Constants that are stored alike, one behind another along the first axis: a copy."""
    stored = [each for each in constants if isinstance(each, StoredReals)]
    if len(stored) < len(constants):
        return np.concatenate([c.whole() if isinstance(c, StoredReals) else c for c in constants])
    numbers = np.concatenate([each.numbers for each in stored])
    scales = [each.quantization for each in stored]
    blocks = [each for each in scales if isinstance(each, BlockScales)]
    if blocks:
        whole = BlockScales(np.concatenate([each.scales for each in blocks]), blocks[0].size)
        return StoredReals(numbers, whole, stored[0].in_nibbles)
    rows: list[tuple[float, int]] = []
    for each, scale in zip(stored, scales, strict=True):
        if isinstance(scale, Quantization):
            pairs = tuple(zip(scale.scale, scale.zero_point, strict=True))
            rows += pairs if scale.per_axis else pairs * len(each.numbers)
    if not rows:
        return StoredReals(numbers)
    return StoredReals(numbers, Quantization(tuple(s for s, _ in rows), tuple(z for _, z in rows)))


def stored_reals(numbers: Array, quantization: Quantization | None = None) -> ConstantData:
    """The f32 numbers that stored ones stand for: as they are stored, where they are many."""
    reals = StoredReals(numbers, quantization)
    return reals if numbers.size >= LARGE else reals.whole()
