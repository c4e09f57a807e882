"""The blocked product of `gemm` on matrix tiles: f16 operands, f32 sums.

Subgroups of a workgroup make blocks of 16 x 16 tiles each; ``split`` teams of them divide the
sum, and add up when the result, which passes through shared memory to become vectors again, is
finished and stored. While a stage is multiplied, the loads of the next are in flight; stages
alternate between two places in shared memory, so one barrier a stage is enough.

In precision F16 operands are rounded to f16. In F32_F16 an operand x is two f16 values,

    high = x rounded to what an f16 holds,  low = f16((x - high) * 2048),

and high*high + (high*low + low*high) / 2048 is nearly the f32 product (the scale keeps ``low`` of
small values out of f16's subnormals; low*low, 2^-22 of the whole, is left out). Weights
that are f16 values, or would be stored as such anyway, have no low part; nor have inputs stored
in f16. An input beyond f16's range (65504) makes its sums infinite or NaN, as it also does
where tensors are stored as f16; weights beyond it keep a product off the matrix tiles.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.kernels.gemm import MatrixProduct, Problem, with_column_sums
from tflgpu.kernels.matrix_stage import (
    LOW_SCALE,
    PairReader,
    Reader,
    Stage,
    TeamMember,
    VectorReader,
)
from tflgpu.kernels.matrix_sums import build_parts
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.kernels.sharing import Result, items, store_results
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import TILE, Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.row_change import RowChange, rows_of
from tflgpu.lowering.stored_types import weight_storage
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import Weights

#: Rounds of a sum that a driver may write out. NVIDIA's writes out all that it may, and took 1.1 s
#: for a kernel of 11 rounds, and 0.2 s where it was told not to.
_MOST_UNROLLED = 8


@attrs.frozen
class Operands:
    """The operands of a product: f16 values that an input is made of (1 or 2), and those of the
    weights, as in `Problem`."""

    inputs: int
    weights: tuple[Weights, ...] = attrs.field(eq=False)

    @property
    def products(self) -> int:
        """f16 products that make one product."""
        return self.inputs + len(self.weights) - 1


def build_matrix_gemm(
    low: Lowering, problem: Problem, operands: Operands, tile: MatrixTile, name: str
) -> None:
    """Write the kernel of a product and dispatch it; for devices with ``caps.matrix_tiles``."""
    k = low.kernel(name, (tile.threads, 1, 1))
    src = _source(low, k, problem)
    change = rows_of(low).change
    if change.length:
        problem = with_column_sums(problem, Scalar.F16.numpy)
    stored = StoredWeights.on(low.caps, problem.weights)
    weights = weight_readers(low, k, problem, operands, stored)
    ragged = problem.depth % (tile.depth * tile.split * tile.parts) != 0
    masked = ragged and not problem.ends_finite
    given = (tile, src, weights, operands.inputs, masked, change if change.length else None)
    groups = (-(-problem.slices // tile.slices), -(-problem.pixels // tile.pixels), tile.parts)
    build_parts(low, k, problem, stored, groups, name, _write, *given)


def weight_readers(
    low: Lowering, k: Builder, problem: Problem, operands: Operands, stored: StoredWeights
) -> tuple[Reader, ...]:
    """How a kernel reads two output slices of each part of the weights."""
    if stored.weights is not problem.weights:
        return (VectorReader(stored.bind(low, k, problem.slices)),)
    parts = [(part, f"weights{i}") for i, part in enumerate(operands.weights)]
    slices = problem.slices
    if slices % 2 == 0:
        return tuple(PairReader(low.weight_pairs(k, *part), slices) for part in parts)
    halves = [low.weights(k, *part, scalar=Scalar.F16) for part in parts]
    return tuple(VectorReader(WeightReader(half, None, slices)) for half in halves)


def loads_of(low: Lowering, problem: Problem) -> int:
    """How many loads bring two slices of a product's input."""
    source = rows_of(low).source
    if problem.in_pairs and low.lies_in_pairs(source):
        return 1
    layout = low.layout(source)
    return 2 if layout.is_vector else 2 * min(layout.channels, 4)


def _source(low: Lowering, k: Builder, problem: Problem) -> ReadView:
    source = rows_of(low).source
    if loads_of(low, problem) == 1:
        return low.read_pairs(k, source)
    src = low.read_value(k, source, "src0")
    # What is stored as f32, as at a part's edges, is not rounded before it becomes two f16.
    return attrs.evolve(src, compute=Scalar.F32) if src.layout.storage is Scalar.F32 else src


def _write(
    k: Builder,
    problem: MatrixProduct,
    tile: MatrixTile,
    src: ReadView,
    weights: tuple[Reader, ...],
    inputs: int,
    masked: bool,
    change: RowChange | None,
    bias: KernelBuffer | None,
    out: WriteView,
) -> None:
    """The body. ``inputs`` is that of `Operands`; ``masked``: weights past the end of the sum have
    to be made zeros. Without a ``bias`` what is written is a part of the sums. ``change`` is what
    is made of the input's rows, if anything is: the bias has the sums of columns behind it."""
    lane = TeamMember(k, tile)
    stage = Stage(k, tile, problem, lane, src, weights, inputs, masked, change)
    sums = _Sums(k, tile, lane, has_low=inputs + len(weights) > 2)
    teams = tile.split * tile.parts
    stages = -(-problem.depth // (tile.depth * teams))
    team = lane.team
    if tile.parts > 1:
        team = k.let(k.group_id(2) * tile.split + lane.team, "part")
    first = k.let(team * tile.depth, "first")

    def fetch(registers: int, step: Expr) -> None:
        stage.fetch(registers, k.let(first + step * (tile.depth * teams), "q0"))

    def multiply(registers: int, step: Expr, *, has_next: bool) -> None:
        place = k.i32(registers) if tile.ahead % tile.places == 0 else step
        place = k.let(place % tile.places, "place")
        stage.commit(registers, place)
        copied = stage.copied(registers)
        k.barrier()
        if has_next:
            with k.if_(step + tile.ahead < stages):
                fetch(registers, step + tile.ahead)
        sums.accumulate(stage, place)
        if copied:
            stage.add_moments(copied, k.let(first + step * (tile.depth * teams), "q0"))
        if tile.places == 1:
            k.barrier()

    for registers in range(min(tile.ahead, stages)):
        fetch(registers, k.i32(registers))
    stage.begin_moments()
    whole = stages - stages % tile.ahead
    if whole:
        unroll = None if whole <= _MOST_UNROLLED * tile.ahead else False
        with k.loop(0, whole, tile.ahead, name="stage", unroll=unroll) as step:
            for registers in range(tile.ahead):
                multiply(registers, k.let(step + registers, "step"), has_next=True)
    for registers in range(stages - whole):
        multiply(registers, k.i32(whole + registers), has_next=False)
    if tile.places == 2:
        k.barrier()
    sums.share(stage.words)
    stage.share_moments()
    k.barrier()

    def result(item: Expr) -> Result:
        row = k.let(k.group_id(1) * tile.pixels + item // tile.slices, "row")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        valid = (row < problem.pixels) & (column < problem.slices)
        row = k.let(k.min(row, problem.pixels - 1), "row")
        column = k.let(k.min(column, problem.slices - 1), "column")
        at = k.let(item // tile.slices * tile.out_pitch + item % tile.slices, "at")
        total = k.bitcast(k.load_shared(stage.words, at), Scalar.F32)
        for team_ in range(1, tile.split):
            offset = team_ * tile.pixels * tile.out_pitch
            total = total + k.bitcast(k.load_shared(stage.words, at + offset), Scalar.F32)
        total = k.let(total, "total")
        if bias is None:
            return valid, k.group_id(2) * problem.pixels + row, column, total
        if stage.moments is not None:
            columns = k.let(k.load(bias, column + problem.slices), "columns")
            total = stage.moments.normalized(item // tile.slices, total, columns)
            total = k.let(total, "total")
        return valid, row, problem.first + column, problem.end(k, bias, column)(total)

    store_results(k, out, items(k, lane.x, tile.pixels * tile.slices, tile.threads), result)


def split_operands(low: Lowering, problem: Problem) -> Operands:
    """How the operands of a product become f16 (see the module's text)."""
    is_half = low.layout(rows_of(low).source).storage is Scalar.F16
    inputs = 1 if is_half or low.precision is Precision.F16 else 2
    return Operands(inputs, _split_weights(problem.weights, low.precision, low.caps))


def parts_of_weights(weights: Weights, precision: Precision, caps: DeviceCaps) -> int:
    """How many f16 values each of the weights becomes, 1 or 2."""
    return len(_split_weights(weights, precision, caps))


def _split_weights(weights: Weights, precision: Precision, caps: DeviceCaps) -> tuple[Weights, ...]:
    is_whole = caps.int8_storage and weights.whole_numbers is not None
    if is_whole or weight_storage(weights, precision, caps) is not Scalar.F32:
        return (weights,)
    whole, high = weights.as_type(np.dtype(np.float32)), weights.as_type(np.dtype(np.float16))
    rest = ((whole - high.astype(np.float32)) * LOW_SCALE).astype(np.float16)
    return (weights, Weights(rest)) if rest.any() else (weights,)


class _Sums:
    """A subgroup's block of accumulators, twice where there are low parts."""

    def __init__(self, k: Builder, tile: MatrixTile, lane: TeamMember, *, has_low: bool) -> None:
        self._k, self._tile, self._lane = k, tile, lane
        shape = range(tile.block_rows), range(tile.block_cols)
        self._high = [[k.matrix_fill() for _ in shape[1]] for _ in shape[0]]
        self._low = [[k.matrix_fill() for _ in shape[1]] for _ in shape[0]] if has_low else None

    def accumulate(self, stage: Stage, place: Expr) -> None:
        """Multiply what is staged."""
        k, tile, lane = self._k, self._tile, self._lane
        base = k.let(stage.base(place), "staged")
        a0 = k.let(base + lane.row * (tile.block_rows * TILE * tile.a_pitch), "ta")
        behind = stage.inputs * stage.a_size
        b0 = k.let(base + (behind + lane.col * (tile.block_cols * 2)), "tb")
        for s in range(tile.depth // 4):
            left = [
                [
                    k.matrix_load(
                        stage.words,
                        a0 + (part * stage.a_size + i * TILE * tile.a_pitch + s * 2),
                        tile.a_pitch,
                        MatrixRole.A,
                        "l",
                    )
                    for i in range(tile.block_rows)
                ]
                for part in range(stage.inputs)
            ]
            for j in range(tile.block_cols):
                at = b0 + (s * TILE * tile.b_pitch + j * 2)
                right = [
                    k.matrix_load(
                        stage.words, at + part * stage.b_size, tile.b_pitch, MatrixRole.B, "r"
                    )
                    for part in range(len(stage.weights))
                ]
                for i in range(tile.block_rows):
                    self._multiply(i, j, [part[i] for part in left], right)

    def _multiply(self, i: int, j: int, left: list[Matrix], right: list[Matrix]) -> None:
        k = self._k
        k.matrix_multiply(self._high[i][j], left[0], right[0])
        if self._low is None:
            return
        if len(left) > 1:
            k.matrix_multiply(self._low[i][j], left[1], right[0])
        if len(right) > 1:
            k.matrix_multiply(self._low[i][j], left[0], right[1])

    def share(self, words: SharedArray) -> None:
        """Put the sums into shared memory: teams x pixels x slices of f32 vectors."""
        k, tile, lane = self._k, self._tile, self._lane
        pitch = tile.out_pitch
        row = lane.team * tile.pixels + lane.row * (tile.block_rows * TILE)
        base = k.let(row * pitch + lane.col * (tile.block_cols * 4), "mine")
        for i in range(tile.block_rows):
            for j in range(tile.block_cols):
                if self._low is not None:
                    k.matrix_add(self._high[i][j], self._low[i][j], 1 / LOW_SCALE)
                k.matrix_store(words, base + (i * TILE * pitch + j * 4), pitch, self._high[i][j])
