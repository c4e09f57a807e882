"""The weights of a product in the form that a device has them.

Real numbers lie in f32 or f16. Weights that a file has in 8 bits, or in blocks of 4, stay so on a
device that stores bytes: loads expand them in registers. Where all inputs of an output have one
scale, a sum of whole numbers is scaled once, at its end; blocks have a buffer of scales.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.weights import Weights


@attrs.frozen
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
        blocks, outputs = found.scales.shape
        scales = np.zeros((blocks, -(-outputs // 4) * 4), np.float32)
        scales[:, :outputs] = found.scales
        return cls(found.weights, scales, None, found.block, found.in_nibbles)

    def bind(self, low: Lowering, k: Builder, slices: int) -> WeightReader:
        """Their buffers in a kernel whose product has so many output slices."""
        numbers = low.weights(k, self.weights)
        scales = None
        if self.scales is not None:
            half = Scalar.F16 if Weights(self.scales).fits_f16 and low.caps.f16_storage else None
            scales = low.weights(k, self.scales, "scales", scalar=half)
        return WeightReader(numbers, scales, slices, self.block, self.in_nibbles)


@attrs.frozen
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


def _low(k: Builder, pair: Expr) -> Expr:
    return k.cast((pair << 28) >> 28, Scalar.F32)


def _high(k: Builder, pair: Expr) -> Expr:
    return k.cast(pair >> 4, Scalar.F32)
