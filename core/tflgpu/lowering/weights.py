"""Constants on their way into a kernel's buffers: in the order that the kernel reads them, and of
the type that they are stored in there, in one pass over what the file has."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tflgpu.ir.dtypes import Array
from tflgpu.ir.stored_reals import BlockScales, ConstantData, StoredReals
from tflgpu.values import frozen

#: The least number that rounds to an infinity in f16, half a step beyond the largest.
INFINITE_F16 = 65520.0
#: The least of f16's normal numbers.
_NORMAL_F16 = 2.0**-14
_F32: np.dtype[Any] = np.dtype(np.float32)
_WORD: np.dtype[Any] = np.dtype(np.uint32)
#: The largest f16.
F16_MAX = 65504.0

#: With a larger scale 8-bit numbers may stand for infinite ones.
_LARGE_SCALE = 2.0**120

#: Outputs that are written together: whole lines of a cache in f16, and few enough for one.
_ROWS = 64
#: From so many numbers on, several threads write them.
_MANY = 1 << 20
_MOST_THREADS = 16


def whole_slices(data: Array, dtype: DTypeLike) -> Array:
    """Numbers of channels, along the last axis, padded with zeros to whole slices."""
    *outer, channels = data.shape
    padded = np.zeros((*outer, -(-channels // 4) * 4), dtype)
    padded[..., :channels] = data
    return padded


def spoiled_by_f16(numbers: Array) -> Array:
    """Which numbers f16 does not hold to its 11 bits: they become an infinity, or are among its
    subnormals, which have fewer bits. Zeros, and what is not finite, are no worse than before."""
    sizes = np.abs(numbers)
    found: Array = np.isfinite(sizes) & (
        (sizes >= INFINITE_F16) | ((sizes > 0) & (sizes < _NORMAL_F16))
    )
    return found


@frozen(eq=False)
class WholeNumbers:
    """Weights of a product, of which each is a whole number times a scale.

    Attributes:
        weights: The whole numbers, in a byte each.
        scales: One an output, of shape [outputs], by which sums are multiplied at their end; or
            [blocks, outputs].
        block: How many inputs have a scale in common; 0 for all.
        in_nibbles: Whether a byte has two of them, of neighbouring inputs, the first in the lower
            bits.
    """

    weights: Weights
    scales: Array
    block: int = 0
    in_nibbles: bool = False


@frozen(eq=False)
class Weights:
    """Numbers of a constant buffer.

    Attributes:
        contents: The numbers, of shape [outputs, ...] where they are to be packed.
        taps: None for numbers that stay in their order. Else how many taps a filter has:
            ``contents``, read as [outputs, taps, inputs], become [tap, input slice, lane of it,
            output slice, lane of it], zero-padded.
        dtype: What they are in the buffer, once that is chosen.
    """

    contents: ConstantData
    taps: int | None = None
    dtype: np.dtype[Any] = _F32
    row: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape in the buffer."""
        if self.taps is None:
            return self.contents.shape
        outputs, taps, inputs = self._sizes
        if self.row is not None:
            return -(-outputs // 4) * 4, self.row // (4 if self.dtype == _WORD else 1)
        return taps, -(-inputs // 4), 4, -(-outputs // 4), 4

    @property
    def size(self) -> int:
        """How many there are in the buffer."""
        return math.prod(self.shape)

    @property
    def whole_numbers(self) -> WholeNumbers | None:
        """The whole numbers that a file has for these, where a product can be made of them."""
        stored = self.contents
        if not isinstance(stored, StoredReals):
            return None
        numbers, quantization = stored.numbers.view(), stored.quantization
        if isinstance(quantization, BlockScales):
            # Whole input slices have a scale, and bytes of two numbers are whole slices, too.
            is_ragged = stored.in_nibbles and stored.shape[-1] % 8
            if self.taps != 1 or quantization.size % 4 or is_ragged:
                return None
            in_bytes = Weights(numbers.view(np.int8), self.taps, np.dtype(np.int8))
            by_block = quantization.scales.reshape(len(numbers), -1).T
            return WholeNumbers(in_bytes, by_block, quantization.size, stored.in_nibbles)
        if quantization is None or numbers.dtype != np.int8 or any(quantization.zero_point):
            return None
        if (quantization.per_axis and quantization.axis) or max(quantization.scale) > _LARGE_SCALE:
            return None
        scales = np.broadcast_to(np.array(quantization.scale, np.float32), stored.shape[:1])
        return WholeNumbers(Weights(numbers, self.taps, numbers.dtype), scales)

    @property
    def is_from_file(self) -> bool:
        """Whether the numbers are those of a file."""
        return isinstance(self.contents, StoredReals) or self.contents.dtype == np.int8

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.size * self.dtype.itemsize

    def array(self) -> Array:
        """They as they lie in the buffer, in one dimension: what is stored where that lies so, else
        made anew each time."""
        made: Array = self.as_type(self.dtype).view()
        made.flags.writeable = False  # plugins see the plan, and caches know it by what it holds
        return made

    @property
    def is_finite(self) -> bool:
        """Whether each of them is."""
        return self._largest() is not None or bool(np.isfinite(self._numbers()).all())

    @property
    def suits_f16(self) -> bool:
        """Whether the largest finite one is held well. Beside it smaller ones say little."""
        largest = self._largest()
        if largest is None:
            numbers = self._numbers()
            largest = max(numbers.max(initial=0.0), -numbers.min(initial=0.0))
            if not np.isfinite(largest):
                sizes = np.abs(numbers)
                largest = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
        return not spoiled_by_f16(np.array(largest, np.float32)).any()

    @property
    def fits_f16(self) -> bool:
        """Whether f16 holds every one exactly."""
        if isinstance(self.contents, StoredReals) and self.contents.is_f16:
            return True
        numbers = self._numbers()
        with np.errstate(over="ignore"):
            return bool((numbers.astype(np.float16) == numbers).all())

    @property
    def within_f16(self) -> bool:
        """Whether f16 holds all of them, rounded: no infinity, no NaN."""
        largest = self._largest()
        if largest is not None:
            return largest <= F16_MAX
        numbers = self._numbers()
        return bool(numbers.max() <= F16_MAX and numbers.min() >= -F16_MAX)

    @property
    def ends_within_f16(self) -> bool:
        """Whether f16 holds those of the last step of a sum, where they are packed: by which the
        last lane of the last input slice of the last tap is multiplied."""
        outputs, taps, inputs = self._sizes
        largest = self._largest()
        if inputs % 4 or (largest is not None and largest <= F16_MAX):
            return True
        last = self._numbers().reshape(outputs, taps, inputs)[:, -1, -1]
        return bool((np.abs(last) <= F16_MAX).all())

    def sums(self, dtype: np.dtype[Any]) -> Array:
        """Those of each output added up, as a type has them."""
        rows = self._numbers().reshape(self.contents.shape[0], -1).astype(dtype)
        return np.asarray(rows.sum(axis=1, dtype=np.float64))

    def as_type(self, dtype: np.dtype[Any]) -> Array:
        """They as they lie in the buffer, of a type, in one dimension; what f16 does not hold
        becomes an infinity."""
        if self.taps is None and not isinstance(self.contents, StoredReals):
            with np.errstate(over="ignore"):
                return self.contents.astype(dtype, order="C", copy=False).reshape(-1)
        outputs, taps, inputs = self._sizes
        kind = np.dtype(np.int8) if dtype == _WORD else dtype
        columns, inner = outputs, inputs
        if self.taps is not None:
            columns, inner = -(-outputs // 4) * 4, -(-inputs // 4) * 4
        row = self.row or taps * inner
        padded = (columns, inner, row) != (outputs, inputs, taps * inputs)
        by_output = self.taps is None or self.row is not None
        stored = self._stored(kind)
        if by_output and not padded and stored is not None and stored.dtype == kind:
            return stored.reshape(-1).view(dtype)
        table = self.contents.table(kind) if isinstance(self.contents, StoredReals) else None
        shape = (columns, row) if by_output else (taps, inner, columns)
        packed = (np.zeros if padded else np.empty)(shape, kind)

        def write(start: int) -> None:
            stop = min(start + _ROWS, outputs)
            with np.errstate(over="ignore"):
                rows = self._rows(start, stop, kind, table).reshape(stop - start, taps, inputs)
                if by_output:
                    for tap in range(taps):
                        numbers = rows[:, tap] if table is None else table[rows[:, tap]]
                        packed[start:stop, tap * inner :][:, :inputs] = numbers
                elif table is None:
                    packed[:, :inputs, start:stop] = rows.transpose(1, 2, 0)
                else:  # bytes are moved, which are a quarter of the numbers
                    turned = np.ascontiguousarray(rows.transpose(1, 2, 0))
                    packed[:, :inputs, start:stop] = table.take(turned, mode="clip")

        starts = range(0, outputs, _ROWS)
        threads = min(len(starts), os.cpu_count() or 1, _MOST_THREADS)
        if packed.size < _MANY or threads == 1:
            for start in starts:
                write(start)
        else:
            with ThreadPoolExecutor(threads, "tflgpu-weights") as pool:
                list(pool.map(write, starts))
        return packed.reshape(-1).view(dtype)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Outputs, taps and inputs."""
        outputs, *inner = self.contents.shape
        taps = self.taps or 1
        return outputs, taps, math.prod(inner) // taps

    def _largest(self) -> float | None:
        """The largest magnitude, where what is stored tells it and all of them are finite."""
        return self.contents.largest() if isinstance(self.contents, StoredReals) else None

    def _numbers(self) -> Array:
        stored = self.contents
        return stored.whole() if isinstance(stored, StoredReals) else stored

    def _stored(self, dtype: np.dtype[Any]) -> Array | None:
        """The numbers as they are stored; None where those of a type are computed of them."""
        stored = self.contents
        if not isinstance(stored, StoredReals):
            return stored
        return stored.numbers if stored.is_f16 and dtype == np.float16 else None

    def _rows(self, start: int, stop: int, dtype: np.dtype[Any], table: Array | None) -> Array:
        """Numbers of some outputs, or the bytes by which a ``table`` has them."""
        if table is not None:
            assert isinstance(self.contents, StoredReals)
            return self.contents.numbers.view(np.uint8)[start:stop]
        found = self._stored(dtype)
        if found is not None:
            return found[start:stop]
        assert isinstance(self.contents, StoredReals)
        return self.contents.rows(start, stop)
