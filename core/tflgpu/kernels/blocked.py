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

from collections.abc import Sequence
from functools import partial

from tflgpu.kernels.gemm import MatrixProduct, Problem
from tflgpu.kernels.matrix_sums import build_parts
from tflgpu.kernels.sharing import items, maybe
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.kernels.tiles import Tile
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.values import evolve


def build_gemm(low: Lowering, problem: Problem, tile: Tile, name: str) -> None:
    """Write the kernel of a product and dispatch it."""
    k = low.kernel(name, (tile.cols, tile.rows, tile.split))
    src = low.read(k, 0)
    stored = StoredWeights.on(low.caps, problem.weights)
    weights = stored.bind(low, k, problem.slices)
    ragged = problem.depth % (tile.depth * tile.split * tile.parts) != 0
    masked = ragged and not problem.ends_finite
    groups = (-(-problem.slices // tile.slices), -(-problem.pixels // tile.pixels), tile.parts)
    given = (tile, src, weights, masked)
    build_parts(low, k, problem, stored, groups, name, _write, *given)


def _write(
    k: Builder,
    problem: MatrixProduct,
    tile: Tile,
    src: ReadView,
    weights: WeightReader,
    masked: bool,
    bias: KernelBuffer | None,
    out: WriteView,
) -> None:
    """The body; ``masked``: weights past the end of the sum have to be made zeros. Without a
    ``bias`` what is written is a part of the sums.

    A stage's loads are in flight while the one before is multiplied: the first round only loads,
    and the last one only multiplies.
    """
    lane = _Lane(k, tile)
    stage = _Stage(k, tile, problem, lane, src, weights, masked)
    sums = [
        [k.var(k.f32(0.0, 4), "acc") for _ in range(tile.block_cols)]
        for _ in range(tile.block_rows)
    ]
    together = tile.depth * tile.split
    stages = -(-problem.depth // (together * tile.parts))
    first = k.let(k.group_id(2) * (stages * together) + lane.z * tile.depth, "first")
    with k.loop(0, stages + 1, name="stage", unroll=False) as step:
        with k.if_(step < stages):
            stage.fetch(k.let(first + step * together, "q0"))
        with k.if_(step > 0):
            _accumulate(k, tile, lane, stage, sums)
        k.barrier()
        with k.if_(step < stages):
            stage.commit()
        k.barrier()
    for i in range(0, tile.block_rows, tile.stored_rows):
        if i:
            k.barrier()
        _store(k, tile, lane, stage.memory, i, sums[i : i + tile.stored_rows], problem, bias, out)


def _store(
    k: Builder,
    tile: Tile,
    lane: _Lane,
    memory: SharedArray,
    begin: int,
    sums: Sequence[Sequence[Variable]],
    problem: MatrixProduct,
    bias: KernelBuffer | None,
    out: WriteView,
) -> None:
    """Add up the splits' sums of some rows of all blocks, in their order, and store them."""
    rows = tile.rows * len(sums)
    count = rows * tile.slices
    for i, row_sums in enumerate(sums):
        row = k.let(lane.z * rows + lane.y + i * tile.rows, "at")
        for j, acc in enumerate(row_sums):
            k.store_shared(memory, row * tile.slices + lane.x + j * tile.cols, acc)
    k.barrier()
    start = k.let(lane.z * (tile.cols * tile.rows) + lane.id, "start")
    with k.loop(start, count, tile.threads, name="item", unroll=False) as item:
        row = k.group_id(1) * tile.pixels + begin * tile.rows + item // tile.slices
        row = k.let(row, "row")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        with k.if_((row < problem.pixels) & (column < problem.slices)):
            total = k.var(k.load_shared(memory, item), "total")
            for other in range(1, tile.split):
                k.add_to(total, k.load_shared(memory, item + other * count))
            if bias is None:
                out.store(k.let(k.group_id(2) * problem.pixels + row, "row"), column, total.read())
            else:
                out.store(row, problem.first + column, problem.end(k, bias, column)(total))


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
        self.reader, self._masked = weights, masked
        threads = tile.cols * tile.rows
        #: The stages of all splits, and then their sums.
        self.memory = k.shared("memory", F32x4, tile.shared_words)
        self.a_base = k.let(lane.z * tile.stage_words, "a0")
        self.b_base = k.let(self.a_base + tile.pixels * tile.pitch, "b0")
        zero = k.f32(0.0, 4)
        self._inputs = []
        for item, is_one in items(k, lane.id, tile.pixels * tile.depth, threads):
            row = k.let(k.group_id(1) * tile.pixels + item // tile.depth, "pixel")
            # Past the last pixel any pixel will do: its sums are never stored.
            row = k.let(k.min(row, problem.pixels - 1), "pixel")
            loads = problem.loads(k, evolve(src, compute=Scalar.F32), row, tile.depth)
            found = k.var(zero, "ra"), k.var(k.i32(0), "there")
            self._inputs.append((item, is_one, loads, *found))
        listed = items(k, lane.id, tile.depth * 4 * tile.slices, threads)
        self._weights = [(item, is_one, k.var(zero, "rb")) for item, is_one in listed]

    def fetch(self, q0: Expr) -> None:
        """Start the loads of the stage that begins at slice ``q0``. What they bring is looked at
        by `commit`: here that would wait for it."""
        k, tile = self.k, self.tile
        for item, _, loads, found, there in self._inputs:
            value, inside = loads(q0, k.let(item % tile.depth, "at"))
            k.set(found, value)
            k.set(there, k.cast(inside, Scalar.I32))
        limit = self.problem.depth * 4
        is_ragged = self.problem.depth % (tile.depth * tile.split * tile.parts) != 0
        for item, _, found in self._weights:
            row = k.let(q0 * 4 + item // tile.slices, "wrow")
            column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "wcol")
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            safe = k.min(row, limit - 1) if is_ragged else row
            column = k.min(column, self.problem.slices - 1)
            weight = self.reader.row(k, safe, column, Scalar.F32)
            if self._masked:
                weight = k.select(row < limit, weight, k.f32(0.0, 4))
            k.set(found, weight)

    def commit(self) -> None:
        """Put what was fetched into shared memory."""
        k, tile = self.k, self.tile
        for item, is_one, _, found, there in self._inputs:
            at = self.a_base + item // tile.depth * tile.pitch + item % tile.depth
            value = k.select(there.eq(1), found, k.f32(0.0, 4))
            maybe(k, is_one, partial(k.store_shared, self.memory, at, value))
        for item, is_one, found in self._weights:
            maybe(k, is_one, partial(k.store_shared, self.memory, self.b_base + item, found))


def _accumulate(
    k: Builder, tile: Tile, lane: _Lane, stage: _Stage, sums: Sequence[Sequence[Variable]]
) -> None:
    a0 = k.let(stage.a_base + lane.y * tile.pitch, "pa")
    b0 = k.let(stage.b_base + lane.x, "pb")
    # Without splits there are few invocations of a workgroup for one to wait on another's reads.
    with k.loop(0, tile.depth, name="s", unroll=tile.split == 1) as s:
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
