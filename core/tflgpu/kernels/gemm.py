"""Products of a tensor with constant weights, as kernels of all kinds have them: sizes, operands,
what is read for an output pixel, and what becomes of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.stored_reals import ConstantData, stacked
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer, Operand
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView
from tflgpu.lowering.weights import Weights
from tflgpu.ops.windows import Window
from tflgpu.values import evolve, field, frozen


def pack_weights(ohwi: ConstantData) -> Weights:
    """OHWI weights -> [tap, input slice, lane of it, output slice, lane of it], zero-padded."""
    _, height, width, _ = ohwi.shape
    return Weights(ohwi, height * width)


def pack_bias(bias: Array | None, channels: int) -> Array:
    """A bias per channel, zero where there is none, padded to whole slices."""
    padded = np.zeros(-(-channels // 4) * 4, np.float32)
    if bias is not None:
        padded[:channels] = bias
    return padded


#: What is read for an output pixel: (first slice of a stage, slice in it) -> an input slice, and
#: whether it counts. Where it lies in the padding or past the end, another one is read.
Loads = Callable[[Expr, Operand], tuple[Expr, Expr]]
#: (tensor, output pixel, slices of a stage) -> what is read for it.
Gather = Callable[[Builder, ReadView, Expr, int], Loads]
Finish = Callable[[Builder, Expr], Expr]


def gather_by_slice(gather: Gather, k: Builder, src: ReadView, row: Expr) -> Callable[[Expr], Expr]:
    """A function that loads input slice ``q`` for an output pixel as f32, or zero where it lies in
    the padding or ``q`` is past the end."""
    # Products are summed in f32: what is stored as f32, as at a part's edges, is not rounded first.
    loads = gather(k, evolve(src, compute=Scalar.F32), row, 1)

    def load(q: Expr) -> Expr:
        value, inside = loads(q, 0)
        return k.select(inside, k.cast(k.let(value, "x"), Scalar.F32), k.f32(0.0, 4))

    return load


def mirrored(k: Builder, at: Expr, size: int, turn: int) -> Expr:
    """The place in a row of pixels that one outside is the mirror image of. With ``turn`` 1 the
    pixels at the edges are there twice, with 0 once."""
    at = k.let(k.select(at < 0, -at - turn, at), "at")
    return k.let(k.select(at >= size, 2 * (size - 1) + turn - at, at), "at")


@frozen
class MatrixProduct:
    """All of a product that its kernel depends on, besides its buffers."""

    pixels: int
    slices: int  # of output channels
    depth: int  # q slices
    loads: Gather
    finish: Finish
    first: int
    has_scales: bool = False

    def end(self, k: Builder, bias: KernelBuffer, column: Expr) -> Callable[[Expr], Expr]:
        """What becomes of sums of an output slice: they are scaled, where weights are whole
        numbers, added to the bias, and finished."""
        offset = k.let(k.load(bias, column), "b")
        if not self.has_scales:
            return lambda total: self.finish(k, total + offset)
        scale = k.let(k.load(bias, column + self.slices), "scale")
        return lambda total: self.finish(k, total * scale + offset)


@frozen
class Problem:
    """A product: sizes, operands and what happens to a finished slice (activation)."""

    pixels: int
    channels: int
    depth: int  # q slices
    weights: Weights = field(eq=False)  # pack_weights
    bias: Array = field(eq=False)  # pack_bias
    loads: Gather
    finish: Finish
    first: int = 0  # slice of the output that its results start at
    in_pairs: bool = False  # whether slices 2q and 2q + 1 of an input lie side by side
    #: That of a convolution whose window has several taps, over all channels of its input.
    window: Window | None = None
    turn: int | None = None  # whether such a window sees the image mirrored, as in `mirrored`

    @property
    def slices(self) -> int:
        """Output channel slices."""
        return -(-self.channels // 4)

    @property
    def product(self) -> MatrixProduct:
        """It without its operands."""
        return MatrixProduct(
            self.pixels, self.slices, self.depth, self.loads, self.finish, self.first
        )

    def stacked(self, others: Sequence[Problem]) -> Problem:
        """It with the outputs of others, of the same input, behind its own."""
        if not others:
            return self
        contents = stacked([p.weights.contents for p in (self, *others)])
        weights = evolve(self.weights, contents=contents)
        bias = np.concatenate([self.bias, *(p.bias for p in others)])
        channels = self.channels + sum(p.channels for p in others)
        return evolve(self, channels=channels, weights=weights, bias=bias)

    @property
    def ends_finite(self) -> bool:
        """Whether every weight of the last step of the sum is finite, in f16 too. Then it may be
        multiplied by zeros: past the end of the sum kernels read it again."""
        return self.weights.ends_within_f16


def bind_bias(
    low: Lowering, k: Builder, problem: Problem, stored: StoredWeights
) -> tuple[MatrixProduct, KernelBuffer]:
    """The product, and what its sums are scaled by and added to."""
    bias, scales = problem.bias, stored.channel_scales
    if scales is not None:
        bias = np.concatenate([bias, pack_bias(scales, problem.channels)])
    product = evolve(problem.product, has_scales=scales is not None)
    return product, low.weights(k, bias, "bias", scalar=Scalar.F32)


def with_column_sums(problem: Problem, dtype: np.dtype[Any]) -> Problem:
    """A product whose bias has behind it the sums of the weights of each output, as a type has
    them."""
    sums = pack_bias(problem.weights.sums(dtype), problem.channels)
    return evolve(problem, bias=np.concatenate([problem.bias, sums]))
