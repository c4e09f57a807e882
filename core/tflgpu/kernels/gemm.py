"""Convolution as a blocked matrix product through shared memory (implicit GEMM).

    out[m, n] = sum over q of in[m, q] * weights[q, n]

``m`` runs over output pixels, ``n`` over output channels, ``q`` over filter taps times input
channel slices, four products each. A workgroup makes a tile of pixels x channels: it stages
``depth`` slices of both operands in shared memory, while the loads of the next stage are
already in flight in registers, and every invocation accumulates a block of its own in f32.
With ``split`` > 1 the invocations divide q among them and add up through shared memory at the
end: late layers have few pixels but long sums, and would leave most of a GPU idle otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.stored_reals import ConstantData, stacked
from tflgpu.kernels.sharing import items, maybe
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.kernels.tiles import Tile
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer, Operand, SharedArray
from tflgpu.language.types import F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView, WriteView
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

    def gather(self, k: Builder, src: ReadView, row: Expr) -> Callable[[Expr], Expr]:
        """What `gather_by_slice` loads for an output pixel."""
        return gather_by_slice(self.loads, k, src, row)

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


@frozen
class BoundProduct:
    """A product in a kernel: with the buffers of its constants.

    Attributes:
        product: As the kernel computes it.
        weights: How it reads weights.
        bias: By output slice, and behind it the scales of channels, where there are any.
    """

    product: MatrixProduct
    weights: WeightReader
    bias: KernelBuffer


def bind(low: Lowering, k: Builder, problem: Problem) -> BoundProduct:
    """Bind the constants of a product to a kernel, in the form that the device has them."""
    stored = StoredWeights.on(low.caps, problem.weights)
    weights = stored.bind(low, k, problem.slices)
    product, bias = bind_bias(low, k, problem, stored)
    return BoundProduct(product, weights, bias)


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


def build_gemm(low: Lowering, problem: Problem, tile: Tile, name: str) -> None:
    """Write the kernel of a product and dispatch it."""
    k = low.kernel(name, (tile.cols, tile.rows, tile.split))
    src = low.read(k, 0)
    bound = bind(low, k, problem)
    out = low.write(k)
    ragged = problem.depth % (tile.depth * tile.split) != 0
    masked = ragged and not problem.ends_finite
    low.body(k, _write, bound, tile, src, out, masked)
    groups = (-(-problem.slices // tile.slices), -(-problem.pixels // tile.pixels), 1)
    low.dispatch_groups(k, groups)


def _write(
    k: Builder, bound: BoundProduct, tile: Tile, src: ReadView, out: WriteView, masked: bool
) -> None:
    """The body; ``masked``: weights past the end of the sum have to be made zeros.

    A stage's loads are in flight while the one before is multiplied: the first round only loads,
    and the last one only multiplies.
    """
    problem, lane = bound.product, _Lane(k, tile)
    stage = _Stage(k, tile, problem, lane, src, bound.weights, masked)
    sums = [
        [k.var(k.f32(0.0, 4), "acc") for _ in range(tile.block_cols)]
        for _ in range(tile.block_rows)
    ]
    stages = -(-problem.depth // (tile.depth * tile.split))
    first = k.let(lane.z * tile.depth, "first")
    with k.loop(0, stages + 1, name="stage", unroll=False) as step:
        with k.if_(step < stages):
            stage.fetch(k.let(first + step * (tile.depth * tile.split), "q0"))
        with k.if_(step > 0):
            _accumulate(k, tile, lane, stage, sums)
        k.barrier()
        with k.if_(step < stages):
            stage.commit()
        k.barrier()
    _store(k, tile, lane, stage.memory, sums, bound, out)


def _store(
    k: Builder,
    tile: Tile,
    lane: _Lane,
    memory: SharedArray,
    sums: Sequence[Sequence[Variable]],
    bound: BoundProduct,
    out: WriteView,
) -> None:
    """Add up the splits' sums, in their order, and store them."""
    problem, count = bound.product, tile.pixels * tile.slices
    for i, row_sums in enumerate(sums):
        row = k.let(lane.z * tile.pixels + lane.y + i * tile.rows, "at")
        for j, acc in enumerate(row_sums):
            k.store_shared(memory, row * tile.slices + lane.x + j * tile.cols, acc)
    k.barrier()
    start = k.let(lane.z * (tile.cols * tile.rows) + lane.id, "start")
    with k.loop(start, count, tile.threads, name="item", unroll=False) as item:
        row = k.let(k.group_id(1) * tile.pixels + item // tile.slices, "row")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        with k.if_((row < problem.pixels) & (column < problem.slices)):
            total = k.var(k.load_shared(memory, item), "total")
            for other in range(1, tile.split):
                k.add_to(total, k.load_shared(memory, item + other * count))
            out.store(row, problem.first + column, problem.end(k, bound.bias, column)(total))


class _Lane:
    """Where an invocation stands in its workgroup."""

    def __init__(self, k: Builder, tile: Tile) -> None:
        self.x = k.let(k.local_id(0), "lx")
        self.y = k.let(k.local_id(1), "ly")
        self.z = k.let(k.local_id(2), "lz") if tile.split > 1 else k.i32(0)
        self.id = k.let(self.y * tile.cols + self.x, "lid")  # within its split


class _Stage:
    """Staging of both operands: global memory -> registers (`fetch`) -> shared (`commit`)."""

    def __init__(
        self,
        k: Builder,
        tile: Tile,
        problem: MatrixProduct,
        lane: _Lane,
        src: ReadView,
        weights: WeightReader,
        masked: bool,
    ) -> None:
        self.k, self.tile, self.problem, self.lane = k, tile, problem, lane
        self.weights, self._masked = weights, masked
        threads = tile.cols * tile.rows
        #: The stages of all splits, and then their sums.
        self.memory = k.shared("memory", F32x4, tile.shared_words)
        self.a_base = k.let(lane.z * tile.stage_words, "a0")
        self.b_base = k.let(self.a_base + tile.pixels * tile.pitch, "b0")
        self._a_items = items(k, lane.id, tile.pixels * tile.depth, threads)
        self._b_items = items(k, lane.id, tile.depth * 4 * tile.slices, threads)
        zero = k.f32(0.0, 4)
        self._a_regs = [k.var(zero, "ra") for _ in self._a_items]
        self._b_regs = [k.var(zero, "rb") for _ in self._b_items]
        self._gathers = []
        for item, _ in self._a_items:
            row = k.let(k.group_id(1) * tile.pixels + item // tile.depth, "pixel")
            # Past the last pixel any pixel will do: its sums are never stored.
            row = k.let(k.min(row, problem.pixels - 1), "pixel")
            self._gathers.append(problem.gather(k, src, row))

    def fetch(self, q0: Expr) -> None:
        """Start the loads of the stage that begins at slice ``q0``."""
        k, tile = self.k, self.tile
        for (item, _), reg, gather in zip(self._a_items, self._a_regs, self._gathers, strict=True):
            k.set(reg, gather(k.let(q0 + item % tile.depth, "q")))
        limit = self.problem.depth * 4
        is_ragged = self.problem.depth % (tile.depth * tile.split) != 0
        for (item, _), reg in zip(self._b_items, self._b_regs, strict=True):
            row = k.let(q0 * 4 + item // tile.slices, "wrow")
            column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "wcol")
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            safe = k.min(row, limit - 1) if is_ragged else row
            column = k.min(column, self.problem.slices - 1)
            weight = self.weights.row(k, safe, column, Scalar.F32)
            if self._masked:
                weight = k.select(row < limit, weight, k.f32(0.0, 4))
            k.set(reg, weight)

    def commit(self) -> None:
        """Put what was fetched into shared memory."""
        k, tile = self.k, self.tile
        stores = [
            (self.a_base + item // tile.depth * tile.pitch + item % tile.depth, is_one, reg)
            for (item, is_one), reg in zip(self._a_items, self._a_regs, strict=True)
        ]
        stores += [
            (self.b_base + item, is_one, reg)
            for (item, is_one), reg in zip(self._b_items, self._b_regs, strict=True)
        ]
        for at, is_one, reg in stores:
            maybe(k, is_one, partial(k.store_shared, self.memory, at, reg))


def _accumulate(
    k: Builder, tile: Tile, lane: _Lane, stage: _Stage, sums: Sequence[Sequence[Variable]]
) -> None:
    a0 = k.let(stage.a_base + lane.y * tile.pitch, "pa")
    b0 = k.let(stage.b_base + lane.x, "pb")
    with k.loop(0, tile.depth, name="s", unroll=False) as s:
        left = [
            k.let(k.load_shared(stage.memory, a0 + i * tile.rows * tile.pitch + s), "l")
            for i in range(tile.block_rows)
        ]
        base = k.let(b0 + s * (4 * tile.slices), "pbs")
        for lane_of_q in range(4):
            for j in range(tile.block_cols):
                right = k.let(
                    k.load_shared(stage.memory, base + lane_of_q * tile.slices + j * tile.cols), "r"
                )
                for i in range(tile.block_rows):
                    k.fma_to(sums[i][j], left[i].lane(lane_of_q), right)
