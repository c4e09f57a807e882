"""The weights of a product in the form that a device has them.

Real numbers lie in f32 or f16. Weights that a file has in 8 bits, or in blocks of 4, stay so on a
device that stores bytes: loads expand them in registers. Where all inputs of an output have one
scale, a sum of whole numbers is scaled once, at its end; blocks have a buffer of scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import U32, Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.weights import Weights, whole_slices
from tflgpu.values import evolve, frozen

#: Outputs of a slice, lanes of a vector, and words of a load.
_FOUR = range(4)
#: Bytes to add up the bytes of a word with.
_ONES = 0x01010101
#: The higher numbers of four bytes.
_HIGH = 0xF0F0F0F0


@frozen
class StoredWeights:
    """Weights and what turns them into real numbers.

    Attributes:
        weights: As they lie in their buffer: [tap, input slice, lane of it, output slice, lane of
            it]; with ``in_nibbles`` a byte has those of two lanes of an input slice.
        scales: [blocks, outputs], padded to whole slices; None without blocks.
        channel_scales: By which sums are multiplied at their end, one an output; or None.
        block: Inputs that have a scale in common; 0 without blocks.
        in_nibbles: Whether numbers have 4 bits.
    """

    weights: Weights
    scales: Array | None = None
    channel_scales: Array | None = None
    block: int = 0
    in_nibbles: bool = False

    @classmethod
    def on(cls, caps: DeviceCaps, weights: Weights) -> StoredWeights:
        """Their form on a device."""
        found = weights.whole_numbers if caps.int8_storage else None
        if found is None:
            return cls(weights)
        if not found.block:
            return cls(found.weights, channel_scales=found.scales)
        scales = whole_slices(found.scales, np.float32)
        return cls(found.weights, scales, None, found.block, found.in_nibbles)

    def bind(self, low: Lowering, k: Builder, slices: int) -> WeightReader:
        """Their buffers in a kernel whose product has so many output slices."""
        numbers = low.weights(k, self.weights)
        scales = self.bind_scales(low, k)
        return WeightReader(numbers, scales, slices, self.block, self.in_nibbles)

    def bind_scales(self, low: Lowering, k: Builder) -> KernelBuffer | None:
        """The buffer of the scales of blocks, where there are some."""
        if self.scales is None:
            return None
        half = Scalar.F16 if Weights(self.scales).fits_f16 and low.caps.f16_storage else None
        return low.weights(k, self.scales, "scales", scalar=half)

    @property
    def is_whole(self) -> bool:
        """Whether a buffer has whole numbers."""
        return self.channel_scales is not None or self.scales is not None


@frozen
class WeightReader:
    """How a kernel reads weights."""

    numbers: KernelBuffer
    scales: KernelBuffer | None
    slices: int
    block: int = 0
    in_nibbles: bool = False

    def step(self, k: Builder, q: Expr) -> Callable[[Expr], list[Expr]]:
        """Those of input slice ``q``: for an output slice the weights of its four lanes."""
        rows = 2 if self.in_nibbles else 4
        base = q * (rows * self.slices)

        def at(column: Expr) -> list[Expr]:
            first = k.let(base + column, "w0")
            found = [self._numbers(k, first + row * self.slices, Scalar.F32) for row in range(rows)]
            if self.in_nibbles:
                pairs = [k.let(each, "pair") for each in found]
                found = [half for pair in pairs for half in (_low(k, pair), _high(k, pair))]
            scale = self._scale(k, q // (self.block // 4 or 1), column)
            return found if scale is None else [each * scale for each in found]

        return at

    def row(self, k: Builder, row: Expr, column: Expr, scalar: Scalar) -> Expr:
        """The weights of one input and an output slice, as f32 or f16."""
        if not self.in_nibbles:
            found = self._numbers(k, row * self.slices + column, scalar)
        else:
            pair = k.let(self._numbers(k, (row >> 1) * self.slices + column, scalar), "pair")
            found = k.select((row & 1).eq(0), _low(k, pair), _high(k, pair))
        scale = self._scale(k, row // (self.block or 1), column)
        return found if scale is None else k.cast(k.cast(found, Scalar.F32) * scale, scalar)

    def _numbers(self, k: Builder, at: Expr, scalar: Scalar) -> Expr:
        return k.load(self.numbers, at, None if self.in_nibbles else scalar)

    def _scale(self, k: Builder, block: Expr, column: Expr) -> Expr | None:
        if self.scales is None:
            return None
        return k.let(k.load(self.scales, block * self.slices + column, Scalar.F32), "scale")


@frozen
class RowForm:
    """How weights lie in their buffer.

    Attributes:
        bits: Of a number in words; 0 where numbers are real.
        unit: Vectors of input that a unit has weights for.
        units: Units of an output.
        slices: Output slices.
        block: Inputs that have a scale in common, 0 where all of an output's have.
        blocks: Blocks of an output.
    """

    bits: int
    unit: int
    units: int
    slices: int
    block: int
    blocks: int

    @property
    def is_whole(self) -> bool:
        """Whether the numbers of a unit have one scale, so that products of whole numbers are
        added."""
        return self.bits > 0 and self.block % (self.unit * 4) == 0

    @classmethod
    def of(cls, stored: StoredWeights, depth: int, slices: int) -> RowForm:
        """That of weights whose sums have ``depth`` vectors of input."""
        bits = 4 if stored.in_nibbles else 8 if stored.is_whole else 0
        unit = 128 // bits // 4 if bits else 1
        blocks = 0 if stored.scales is None else len(stored.scales)
        return cls(bits, unit, -(-depth // unit), slices, stored.block, blocks)

    def bind(self, low: Lowering, k: Builder, stored: StoredWeights) -> RowWeights:
        """The buffers of a kernel."""
        row = self.units * self.unit * 4
        weights = evolve(stored.weights, row=row // 2 if self.bits == 4 else row)
        numbers = low.weights(k, weights, scalar=Scalar.U32 if self.bits else None)
        return RowWeights(self, numbers, stored.bind_scales(low, k))


@frozen
class RowWeights:
    """How a kernel reads them: real numbers in vectors of four, or words in such; and the scales of
    blocks, where there are some."""

    form: RowForm
    numbers: KernelBuffer
    scales: KernelBuffer | None

    def unit(self, k: Builder, column: Expr, unit: Expr) -> list[Expr]:
        """What is stored of a unit, for each output of a slice."""
        scalar = None if self.form.bits else Scalar.F32
        first = k.let(column * (4 * self.form.units) + unit, "first")
        return [
            k.let(k.load(self.numbers, first + i * self.form.units, scalar), "w") for i in _FOUR
        ]

    def reals(self, k: Builder, stored: Sequence[Expr], vector: int) -> list[Expr]:
        """For each output the four weights of a vector of the unit, without scales."""
        bits = self.form.bits
        if not bits:
            return list(stored)
        first = vector * 4 * bits
        word, at = divmod(first, 32)
        found = []
        for each in stored:
            bytes_ = k.let(k.bitcast(each.lane(word), Scalar.I32), "bytes")
            ups = [32 - bits - at - i * bits for i in _FOUR]
            lanes = [(bytes_ << up if up else bytes_) >> (32 - bits) for up in ups]
            found.append(k.cast(k.vec(lanes), Scalar.F32))
        return found

    def words(self, k: Builder, stored: Sequence[Expr]) -> list[list[Expr]]:
        """For each output the words of four bytes that a unit has; numbers of 4 bits are 16 times
        as large in them, those at even places of a word in one and those at odd ones in another."""
        words = [list(each.lanes) for each in stored]
        if self.form.bits == 8:
            return words
        halves = [[half for w in each for half in ((w << 4) & _HIGH, w & _HIGH)] for each in words]
        return [[k.let(half, "word") for half in each] for each in halves]

    def dots(
        self, k: Builder, words: Sequence[Sequence[Expr]], others: Sequence[Expr] | None
    ) -> Expr:
        """For each output the sum of the products of its `words` with those of an input, or with
        ones."""
        with_ = [k.const(_ONES, U32)] * len(words[0]) if others is None else others
        return k.vec(
            [
                reduce(add, (k.call("dot4_i8", a, b) for a, b in zip(each, with_, strict=True)))
                for each in words
            ]
        )

    def scale(self, k: Builder, column: Expr, vector: Expr) -> Expr | None:
        """The scales of a slice's outputs for a vector of input."""
        if self.scales is None:
            return None
        form = self.form
        block = k.min(vector // (form.block // 4), form.blocks - 1)
        return k.let(k.load(self.scales, block * form.slices + column, Scalar.F32), "scale")


def _low(k: Builder, pair: Expr) -> Expr:
    return k.cast((pair << 28) >> 28, Scalar.F32)


def _high(k: Builder, pair: Expr) -> Expr:
    return k.cast(pair >> 4, Scalar.F32)
