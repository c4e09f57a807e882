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

from collections.abc import Callable

import attrs
import numpy as np

from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.kernels.sharing import items, maybe
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import TILE, F16x4, F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import Weights

#: What ``low`` is scaled by: f16 has 11 bits.
LOW_SCALE = 2.0**11
#: To round an f32's bits to 11 significant ones: half a unit of the last, and the bits kept.
_HALF_UNIT, _KEPT_BITS = 0x1000, 0xFFFFE000
_SMALLEST_NORMAL = 2.0**-14  # of f16


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
    src = low.read(k, 0)
    stored = StoredWeights.on(low.caps, problem.weights)
    if stored.weights is problem.weights:
        halves = [
            low.weights(k, part, f"weights{i}", scalar=Scalar.F16)
            for i, part in enumerate(operands.weights)
        ]
        weights = [WeightReader(half, None, problem.slices) for half in halves]
    else:
        weights = [stored.bind(low, k, problem.slices)]
    bound = bind_bias(low, k, problem, stored, weights[0])
    out = low.write(k)
    ragged = problem.depth % (tile.depth * tile.split) != 0
    masked = ragged and not problem.ends_finite
    given = (src, tuple(weights), bound.bias, out, operands.inputs, masked)
    low.body(k, _write, bound.product, tile, *given)
    groups = (-(-problem.slices // tile.slices), -(-problem.pixels // tile.pixels), 1)
    low.dispatch_groups(k, groups)


def _write(
    k: Builder,
    problem: MatrixProduct,
    tile: MatrixTile,
    src: ReadView,
    weights: tuple[WeightReader, ...],
    bias: KernelBuffer,
    out: WriteView,
    inputs: int,
    masked: bool,
) -> None:
    """The body. ``inputs`` is that of `Operands`; ``masked``: weights past the end of the sum have
    to be made zeros."""
    lane = _Lane(k, tile)
    stage = _Stage(k, tile, problem, lane, src, weights, inputs, masked)
    sums = _Sums(k, tile, lane, has_low=inputs + len(weights) > 2)
    stages = -(-problem.depth // (tile.depth * tile.split))
    first = k.let(lane.team * tile.depth, "first")
    stage.fetch(first)
    with k.loop(0, stages, name="stage") as step:
        buffer = k.let(step % 2, "buffer")
        stage.commit(buffer)
        k.barrier()
        with k.if_(step + 1 < stages):
            stage.fetch(k.let(first + (step + 1) * (tile.depth * tile.split), "q0"))
        sums.accumulate(stage, buffer)
    result = sums.share()
    k.barrier()
    for item, inside in items(k, lane.x, tile.pixels * tile.slices, tile.threads):
        row = k.let(k.group_id(1) * tile.pixels + item // tile.slices, "row")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        valid = (row < problem.pixels) & (column < problem.slices)
        with k.if_(valid if inside is None else valid & inside):
            at = k.let(item // tile.slices * tile.out_pitch + item % tile.slices, "at")
            total = k.load_shared(result, at)
            for team in range(1, tile.split):
                offset = team * tile.pixels * tile.out_pitch
                total = total + k.load_shared(result, at + offset)
            end = problem.end(k, bias, column)
            out.store(row, problem.first + column, end(k.let(total, "total")))


def split_operands(low: Lowering, problem: Problem) -> Operands:
    """How the operands of a product become f16 (see the module's text)."""
    is_half = low.layout(low.node.input(0)).storage is Scalar.F16
    inputs = 1 if is_half or low.precision is Precision.F16 else 2
    return Operands(inputs, _split_weights(problem.weights, low.precision, low.caps))


def parts_of_weights(weights: Weights, precision: Precision, caps: DeviceCaps) -> int:
    """How many f16 values each of the weights becomes, 1 or 2."""
    return len(_split_weights(weights, precision, caps))


def _split_weights(weights: Weights, precision: Precision, caps: DeviceCaps) -> tuple[Weights, ...]:
    is_whole = caps.int8_storage and weights.whole_numbers is not None
    if is_whole or precision.weight_storage(weights, caps) is not Scalar.F32:
        return (weights,)
    whole, high = weights.as_type(np.dtype(np.float32)), weights.as_type(np.dtype(np.float16))
    rest = ((whole - high.astype(np.float32)) * LOW_SCALE).astype(np.float16)
    return (weights, Weights(rest)) if rest.any() else (weights,)


def halves_of(k: Builder, x: Expr) -> tuple[Expr, Expr]:
    """The two values, high and low, that f16 holds of an f32."""
    # Rounded in f32 to what an f16 holds: compilers make more of a conversion there and back
    # than the product takes. Normal numbers have 11 bits, and the others are multiples of
    # 2^-24, as all of f32's are between 0.5 and 1.
    bits = k.bitcast(x, Scalar.U32) + _HALF_UNIT & _KEPT_BITS
    is_normal = k.call("abs", x) >= _SMALLEST_NORMAL
    subnormal = (x + 0.75) - 0.75
    high = k.let(k.select(is_normal, k.bitcast(bits, Scalar.F32), subnormal), "high")
    return high, (x - high) * LOW_SCALE


class _Lane:
    """Where an invocation stands in its workgroup."""

    def __init__(self, k: Builder, tile: MatrixTile) -> None:
        self.x = k.let(k.local_id(0), "lx")
        subgroup = k.let(k.subgroup_id(), "subgroup")
        team_size = tile.rows * tile.cols
        self.team = k.let(subgroup // team_size, "team") if tile.split > 1 else k.i32(0)
        self.row = k.let(subgroup % team_size // tile.cols, "srow")
        self.col = k.let(subgroup % tile.cols, "scol")
        self.id = k.let(self.x % tile.team_threads, "lid")  # within its team


class _Stage:
    """Staging of both operands: global memory -> registers (`fetch`) -> shared (`commit`).

    Both are stored as rows of f16 vectors: pixels x depth, and depth x channels.
    """

    def __init__(
        self,
        k: Builder,
        tile: MatrixTile,
        problem: MatrixProduct,
        lane: _Lane,
        src: ReadView,
        weights: tuple[WeightReader, ...],
        inputs: int,
        masked: bool,
    ) -> None:
        self.k, self.tile, self.problem, self.lane = k, tile, problem, lane
        self._weights, self._masked = weights, masked
        self.a_size = tile.pixels * tile.a_pitch
        self.b_size = tile.depth * 4 * tile.b_pitch
        self.a = [k.shared(f"a{i}", F16x4, 2 * tile.split * self.a_size) for i in range(inputs)]
        self.b = [
            k.shared(f"b{i}", F16x4, 2 * tile.split * self.b_size) for i in range(len(weights))
        ]
        self._a_items = items(k, lane.id, tile.pixels * tile.depth, tile.team_threads)
        self._b_items = items(k, lane.id, tile.depth * 4 * tile.slices, tile.team_threads)
        self._a_regs = [k.var(k.f32(0.0, 4), "ra") for _ in self._a_items]
        self._b_regs = [[k.var(k.const(0, F16x4), "rb") for _ in self._b_items] for _ in weights]
        self._gathers: list[Callable[[Expr], Expr]] = []
        for item, _ in self._a_items:
            row = k.let(k.group_id(1) * tile.pixels + item // tile.depth, "pixel")
            # Past the last pixel any pixel will do: its sums are never stored.
            row = k.let(k.min(row, problem.pixels - 1), "pixel")
            self._gathers.append(problem.gather(k, src, row))

    def a_base(self, buffer: Expr) -> Expr:
        """Where this team's pixels begin in ``a``."""
        return (buffer * self.tile.split + self.lane.team) * self.a_size

    def b_base(self, buffer: Expr) -> Expr:
        """Where this team's weights begin in ``b``."""
        return (buffer * self.tile.split + self.lane.team) * self.b_size

    def fetch(self, q0: Expr) -> None:
        """Start the loads of the stage that begins at slice ``q0``."""
        k, tile = self.k, self.tile
        for (item, _), reg, gather in zip(self._a_items, self._a_regs, self._gathers, strict=True):
            k.set(reg, gather(k.let(q0 + item % tile.depth, "q")))
        limit = self.problem.depth * 4
        ragged = self.problem.depth % (tile.depth * tile.split) != 0
        for i, (item, _) in enumerate(self._b_items):
            row = q0 * 4 + item // tile.slices
            column = k.group_id(0) * tile.slices + item % tile.slices
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            inside = row < limit if self._masked else None
            row = k.min(row, limit - 1) if ragged else row
            if self.problem.slices % tile.slices:
                column = k.min(column, self.problem.slices - 1)
            row, column = k.let(row, "wrow"), k.let(column, "wcol")
            for regs, weights in zip(self._b_regs, self._weights, strict=True):
                weight = k.cast(weights.row(k, row, column, Scalar.F16), Scalar.F16)
                if inside is not None:
                    weight = k.select(inside, weight, k.const(0.0, weight.type))
                k.set(regs[i], weight)

    def commit(self, buffer: Expr) -> None:
        """Put what was fetched into shared memory."""
        k, tile = self.k, self.tile
        a_base = k.let(self.a_base(buffer), "pa")
        for (item, inside), reg in zip(self._a_items, self._a_regs, strict=True):
            at = k.let(a_base + item // tile.depth * tile.a_pitch + item % tile.depth, "ia")
            maybe(
                k,
                inside,
                lambda at=at, reg=reg: self._commit_input(at, reg),  # type: ignore[misc]
            )
        b_base = k.let(self.b_base(buffer), "pb")
        for i, (item, inside) in enumerate(self._b_items):
            at = k.let(b_base + item // tile.slices * tile.b_pitch + item % tile.slices, "ib")
            maybe(k, inside, lambda at=at, i=i: self._commit_weights(at, i))  # type: ignore[misc]

    def _commit_input(self, at: Expr, reg: Variable) -> None:
        k = self.k
        if len(self.a) == 1:
            k.store_shared(self.a[0], at, k.cast(reg, Scalar.F16))
            return
        for array, part in zip(self.a, halves_of(k, reg), strict=True):
            k.store_shared(array, at, k.cast(part, Scalar.F16))

    def _commit_weights(self, at: Expr, item: int) -> None:
        for array, regs in zip(self.b, self._b_regs, strict=True):
            self.k.store_shared(array, at, regs[item])


class _Sums:
    """A subgroup's block of accumulators, twice where there are low parts."""

    def __init__(self, k: Builder, tile: MatrixTile, lane: _Lane, *, has_low: bool) -> None:
        self._k, self._tile, self._lane = k, tile, lane
        shape = range(tile.block_rows), range(tile.block_cols)
        self._high = [[k.matrix_fill() for _ in shape[1]] for _ in shape[0]]
        self._low = [[k.matrix_fill() for _ in shape[1]] for _ in shape[0]] if has_low else None

    def accumulate(self, stage: _Stage, buffer: Expr) -> None:
        """Multiply what is staged."""
        k, tile, lane = self._k, self._tile, self._lane
        a0 = lane.row * (tile.block_rows * TILE * tile.a_pitch)
        b0 = lane.col * (tile.block_cols * 4)
        a0, b0 = k.let(stage.a_base(buffer) + a0, "ta"), k.let(stage.b_base(buffer) + b0, "tb")
        for s in range(tile.depth // 4):
            left = [
                [
                    k.matrix_load(
                        array,
                        a0 + (i * TILE * tile.a_pitch + s * 4),
                        tile.a_pitch,
                        MatrixRole.A,
                        "l",
                    )
                    for i in range(tile.block_rows)
                ]
                for array in stage.a
            ]
            for j in range(tile.block_cols):
                at = b0 + (s * TILE * tile.b_pitch + j * 4)
                right = [
                    k.matrix_load(array, at, tile.b_pitch, MatrixRole.B, "r") for array in stage.b
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

    def share(self) -> SharedArray:
        """Put the sums into shared memory: teams x pixels x slices."""
        k, tile, lane = self._k, self._tile, self._lane
        pitch = tile.out_pitch
        result = k.shared("result", F32x4, tile.split * tile.pixels * pitch)
        row = lane.team * tile.pixels + lane.row * (tile.block_rows * TILE)
        base = k.let(row * pitch + lane.col * (tile.block_cols * 4), "mine")
        for i in range(tile.block_rows):
            for j in range(tile.block_cols):
                if self._low is not None:
                    k.matrix_add(self._high[i][j], self._low[i][j], 1 / LOW_SCALE)
                k.matrix_store(result, base + (i * TILE * pitch + j * 4), pitch, self._high[i][j])
        return result
