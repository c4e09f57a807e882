"""BATCH_MATMUL: products of matrices that the model computes.

Both operands come in blocks of 4x4, read as four vectors along whichever dimension is stored
last and turned in registers where that is not the one needed; so one kernel serves every
combination of transposed operands. On GPUs a workgroup stages blocks in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tflgpu.ir.graph import Node
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.layout import Shape
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView, broadcast_outer
from tflgpu.values import frozen

#: Shared-memory kernel: a workgroup of 8x8 makes 32 rows x 8 slices, 16 products at a time.
_SIDE, _BLOCKS = 8, 4
_ROWS = _SIDE * 4
# One spare column keeps rows of one block in different banks.
_PITCH = _BLOCKS + 1


@frozen
class _Sizes:
    rows: int
    depth: int
    columns: int
    batches: int

    @classmethod
    def of(cls, node: Node) -> _Sizes:
        shape = node.outputs[0].shape
        left = node.input(0).shape
        batches = 1
        for size in shape[:-2]:
            batches *= size
        return cls(shape[-2], left[-2] if node.attrs.adj_x else left[-1], shape[-1], batches)

    @property
    def slices(self) -> int:
        return -(-self.columns // 4)

    @property
    def row_blocks(self) -> int:
        return -(-self.rows // 4)

    @property
    def depth_blocks(self) -> int:
        return -(-self.depth // 4)


class _Matrix:
    """One operand's matrices, read in 4x4 blocks."""

    def __init__(
        self, k: Builder, view: ReadView, batch: Expr, out: Shape, *, transposed: bool
    ) -> None:
        self.k, self.view, self.transposed = k, view, transposed
        self.lines = view.shape[-2]  # of the matrix as it is stored
        # Batches broadcast as rows of one channel each would.
        position = broadcast_outer(k, batch, (*out[:-2], 1), (*view.shape[:-2], 1))
        self.base = k.let(position * self.lines, "matrix")

    def block(self, line: Expr, slice_: Expr) -> list[Expr]:
        """Rows ``4*line ..`` of the matrix that is meant, at columns ``4*slice_ ..``: four
        vectors, zero beyond the matrix."""
        if not self.transposed:
            return self._stored(line, slice_)
        k, turned = self.k, self._stored(slice_, line)
        return [k.let(k.vec([v.lane(i) for v in turned]), "turned") for i in range(4)]

    def _stored(self, line: Expr, slice_: Expr) -> list[Expr]:
        k, view = self.k, self.view
        slice_ = k.let(k.min(slice_, view.slices - 1), "slice")
        vectors = []
        for i in range(4):
            row = k.let(line * 4 + i, "row")
            at = k.let(self.base + k.min(row, self.lines - 1), "at")
            value = k.cast(view.load(at, slice_), Scalar.F32)
            if self.lines % 4:
                value = k.select(row < self.lines, value, k.f32(0.0, 4))
            vectors.append(k.let(value, "v"))
        return vectors


def _operands(low: Lowering, k: Builder, batch: Expr) -> tuple[_Matrix, _Matrix, WriteView]:
    attributes, shape = low.attrs, low.node.outputs[0].shape
    left, right, out = low.read(k, 0), low.read(k, 1), low.write(k)
    return (
        _Matrix(k, left, batch, shape, transposed=attributes.adj_x),
        _Matrix(k, right, batch, shape, transposed=attributes.adj_y),
        out,
    )


def _multiply(
    k: Builder, sums: Sequence[Variable], left: Sequence[Expr], right: Callable[[int], Expr]
) -> None:
    """Four steps of depth: ``left`` has a vector along depth per row, ``right`` one along the
    columns per step."""
    for step in range(4):
        vector = right(step)
        for total, row in zip(sums, left, strict=True):
            k.fma_to(total, row.lane(step), vector)


def build_direct(low: Lowering) -> None:
    """One invocation makes four rows of a slice."""
    sizes = _Sizes.of(low.node)
    k = low.kernel("batch_matmul", (8, 8, 1))
    slice_, block = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "block")
    batch = k.let(k.global_id(2), "batch")
    guard(k, slice_ < sizes.slices, block < sizes.row_blocks)
    left, right, out = _operands(low, k, batch)
    sums = [k.var(k.f32(0.0, 4), "acc") for _ in range(4)]
    with k.loop(0, sizes.depth_blocks, name="q") as q:
        rows, steps = left.block(block, q), right.block(q, slice_)
        _multiply(k, sums, rows, steps.__getitem__)
    for i, total in enumerate(sums):
        row = k.let(block * 4 + i, "row")
        with k.if_(row < sizes.rows):
            out.store(k.let(batch * sizes.rows + row, "to"), slice_, total)
    low.dispatch(k, (sizes.slices, sizes.row_blocks, sizes.batches))


def build_tiled(low: Lowering) -> None:
    """A workgroup makes a tile; half of it stages the left operand, half the right."""
    sizes = _Sizes.of(low.node)
    k = low.kernel("batch_matmul_tiled", (_SIDE, _SIDE, 1))
    lx, ly = k.let(k.local_id(0), "lx"), k.let(k.local_id(1), "ly")
    batch = k.let(k.group_id(2), "batch")
    left, right, out = _operands(low, k, batch)
    left_tile = k.shared("left", F32x4, _ROWS * _PITCH)
    right_tile = k.shared("right", F32x4, _BLOCKS * 4 * _SIDE)
    first_block = k.let(k.group_id(1) * _SIDE, "block0")
    first_slice = k.let(k.group_id(0) * _SIDE, "slice0")
    id_ = k.let(ly * _SIDE + lx, "id")
    half = _SIDE * _BLOCKS  # invocations that each stage one 4x4 block of an operand
    sums = [k.var(k.f32(0.0, 4), "acc") for _ in range(4)]
    with k.loop(0, -(-sizes.depth_blocks // _BLOCKS), name="stage") as stage:
        first = k.let(stage * _BLOCKS, "q0")
        with k.if_(id_ < half):
            block, q = k.let(id_ // _BLOCKS, "block"), k.let(id_ % _BLOCKS, "q")
            inside = (first_block + block < sizes.row_blocks) & (first + q < sizes.depth_blocks)
            for i, vector in enumerate(left.block(first_block + block, first + q)):
                kept = k.select(inside, vector, k.f32(0.0, 4))
                k.store_shared(left_tile, (block * 4 + i) * _PITCH + q, kept)
        with k.else_():
            q, column = k.let((id_ - half) // _SIDE, "q"), k.let((id_ - half) % _SIDE, "column")
            inside = (first + q < sizes.depth_blocks) & (first_slice + column < sizes.slices)
            for i, vector in enumerate(right.block(first + q, first_slice + column)):
                kept = k.select(inside, vector, k.f32(0.0, 4))
                k.store_shared(right_tile, (q * 4 + i) * _SIDE + column, kept)
        k.barrier()
        with k.loop(0, _BLOCKS, name="s", unroll=True) as s:
            rows = [
                k.let(k.load_shared(left_tile, (ly + i * _SIDE) * _PITCH + s), "l")
                for i in range(4)
            ]
            _multiply(k, sums, rows, _column_of(k, right_tile, s * (4 * _SIDE) + lx))
        k.barrier()
    slice_ = k.let(first_slice + lx, "slice")
    for i, total in enumerate(sums):
        row = k.let(first_block * 4 + ly + i * _SIDE, "row")
        with k.if_((row < sizes.rows) & (slice_ < sizes.slices)):
            out.store(k.let(batch * sizes.rows + row, "to"), slice_, total)
    groups = (-(-sizes.slices // _SIDE), -(-sizes.rows // _ROWS), sizes.batches)
    low.dispatch_groups(k, groups)


def _column_of(k: Builder, tile: SharedArray, first: Expr) -> Callable[[int], Expr]:
    base = k.let(first, "r0")
    return lambda step: k.let(k.load_shared(tile, base + step * _SIDE), "r")


def _worth_tiling(node: Node, site: Site) -> str | None:
    if not site.caps.is_gpu:
        return "a CPU's caches do what shared memory would"
    least = tuning_of(site.caps).least_tiled_rows
    if _Sizes.of(node).rows < least:
        return f"fewer than {least} rows"
    return takes(FLOATS)(node, site)


def _accepts(node: Node, site: Site) -> str | None:
    batches = _Sizes.of(node).batches
    if batches > site.caps.max_groups[2]:
        return f"{batches} matrices are more than the {site.caps.max_groups[2]} of one dispatch"
    return takes(FLOATS)(node, site)


def _reads(rows: int, slices: int, node: Node, operand: int) -> int:
    """`KernelRule.reads` where so many rows and slices of the result share what is read."""
    sizes = _Sizes.of(node)
    return -(-sizes.rows // rows) if operand else -(-sizes.slices // slices)


RULES = (
    KernelRule("BATCH_MATMUL", "direct", build_direct, _accepts, reads=partial(_reads, 4, 1)),
    KernelRule(
        "BATCH_MATMUL",
        "tiled",
        build_tiled,
        lambda node, site: _worth_tiling(node, site) or _accepts(node, site),
        rank=10,
        reads=partial(_reads, _ROWS, _SIDE),
    ),
)
