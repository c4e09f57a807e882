"""Random numbers whose count or shape is known only at run time: RANDOM_UNIFORM,
RANDOM_STANDARD_NORMAL, MULTINOMIAL.

In LiteRT each operator has a generator that goes on from run to run, also when the shape changes.
Kernels that are compiled for each shape would start again with each, and repeat numbers. So the
host draws these numbers, from the same generator: Philox 4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011) by the seeds of the file, where both of these are 0 by other
ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import DeviceError, InputError
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array, DType

_U32, _U64 = np.uint32, np.uint64
_LOW = _U64(0xFFFFFFFF)
_FACTORS = (_U64(0xD2511F53), _U64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
#: How far MULTINOMIAL moves on for each number: TensorFlow's kernel may draw that often.
_SKIPPED = 2 * 256


class Philox:
    """A generator: at any place of its sequence four words of 32 bits."""

    def __init__(self, seed: int, seed2: int) -> None:
        self._key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
        self._stream = seed2 & (1 << 64) - 1  # the upper half of the counter
        self._at = 0

    def skip(self, count: int) -> None:
        """Move on by so many places."""
        self._at += count

    def words(self, count: int) -> Array:
        """u32 [count, 4]: of the next places, without moving on."""
        # Where the lower half of the counter ends, the upper half goes on.
        places = np.array([self._at & (1 << 64) - 1], _U64) + np.arange(count, dtype=_U64)
        wrapped = places < places[:1] if count else places
        upper = np.array([self._stream + (self._at >> 64) & (1 << 64) - 1], _U64) + wrapped
        c = [places & _LOW, places >> _U64(32), upper & _LOW, upper >> _U64(32)]
        key = self._key
        for _ in range(_ROUNDS):
            first, second = c[0] * _FACTORS[0], c[2] * _FACTORS[1]
            c = [
                second >> _U64(32) ^ c[1] ^ _U64(key[0]),
                second & _LOW,
                first >> _U64(32) ^ c[3] ^ _U64(key[1]),
                first & _LOW,
            ]
            key = ((key[0] + _STEPS[0]) & 0xFFFFFFFF, (key[1] + _STEPS[1]) & 0xFFFFFFFF)
        return np.stack(c, 1).astype(_U32)


class Draws:
    """What the operators of one subgraph draw, each from a generator of its own."""

    NAMES = frozenset({"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"})

    def __init__(self) -> None:
        self._generators: dict[int, Philox] = {}

    def draw(
        self,
        name: str,
        index: int,
        fields: Mapping[str, Any],
        operands: Sequence[Array],
        dtype: DType,
    ) -> Array:
        """The numbers of a run.

        Args:
            name: One of `NAMES`.
            index: Of the operator in its subgraph.
            fields: Its options.
            operands: Contents: a shape; of MULTINOMIAL logarithms of odds [rows, classes], and a
                count.
            dtype: Of the result.

        Raises:
            InputError: a size, or a count, is negative, or there is no class to choose.
            ModelError: the result is too large.
            DeviceError: the operator is not as LiteRT takes it.
        """
        generator = self._generators.get(index)
        if generator is None:
            seeds = int(fields.get("seed", 0)), int(fields.get("seed2", 0))
            if seeds == (0, 0):
                seeds = secrets.randbits(64), secrets.randbits(64)
            generator = self._generators[index] = Philox(*seeds)
        if name == "MULTINOMIAL":
            return _classes(generator, operands, dtype)
        (sizes,) = operands
        if sizes.ndim != 1 or dtype is not DType.F32:
            raise DeviceError(f"{name}: a shape of rank 1 and f32 are needed")
        shape = tuple(int(n) for n in sizes)
        if any(n < 0 for n in shape):
            raise InputError(f"{name}: the shape {list(shape)} has a negative size")
        check_size(shape, dtype, "its result")
        count = int(np.prod(shape, dtype=object))
        words = generator.words(-(-count // 4))
        generator.skip(len(words))
        numbers = _uniform(words) if name == "RANDOM_UNIFORM" else _normal(words)
        return np.ascontiguousarray(numbers.reshape(-1)[:count].reshape(shape))


def _uniform(words: Array) -> Array:
    """f32 in [0, 1): the 23 lowest bits are the fraction of a number from 1 to 2."""
    ones = (words & _U32(0x7FFFFF)) | _U32(127 << 23)
    return np.asarray(ones.view(np.float32) - np.float32(1))


def _normal(words: Array) -> Array:
    """By Box and Muller: two words make two numbers."""
    uniform = _uniform(words).reshape(-1, 2)
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(uniform[:, 0], np.float32(1e-7))))
    angle = np.float32(2 * np.pi) * uniform[:, 1]
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], 1)


def _classes(generator: Philox, operands: Sequence[Array], dtype: DType) -> Array:
    logits, count = operands
    if logits.ndim != 2 or logits.dtype != np.float32 or dtype not in (DType.I32, DType.I64):
        raise DeviceError("MULTINOMIAL: logits of rank 2 and f32, and whole numbers, are needed")
    rows, wanted = logits.shape[0], int(count.reshape(-1)[0])
    if wanted < 0 or logits.shape[1] == 0:
        raise InputError(f"MULTINOMIAL: {wanted} of {logits.shape[1]} classes cannot be drawn")
    check_size((rows, wanted), dtype, "its result")
    words = generator.words(-(-rows * wanted // 2)).reshape(-1, 2)[: rows * wanted].astype(_U64)
    generator.skip(rows * (-(-wanted // 4) * 4) * _SKIPPED)
    # Two words make the fraction of a double from 1 to 2.
    bits = (words[:, 0] & _U64(0xFFFFF)) << _U64(32) | words[:, 1] | _U64(1023 << 52)
    drawn = (bits.view(np.float64) - 1).reshape(rows, wanted)
    finite = np.isfinite(logits)
    largest = np.max(np.where(finite, logits, np.finfo(np.float32).min), axis=1, keepdims=True)
    odds = np.where(finite, np.exp(np.where(finite, logits - largest.astype(np.float64), 0)), 0)
    steps = np.cumsum(odds, axis=1)
    found = np.empty((rows, wanted), dtype.numpy)
    for row in range(rows):
        found[row] = np.searchsorted(steps[row], drawn[row] * steps[row, -1], side="right")
    return found
