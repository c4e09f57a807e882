"""A convolution of at most eight input channels on matrix tiles.

Neighbours of a row, each one or two vectors of its channels, are 16 steps of the sum as they lie: a
pixel's window is some groups of four or two taps of each of its rows. A workgroup stages a block of
the image once. Rows of a tile begin at multiples of 16 bytes, which is two vectors: where that is
two pixels, a tile has every second one, and for windows that begin between two of these the block
is staged a second time, moved by a vector.

The last group of a row ends with the window, and its weights are zeros where it overlaps the one
before: nothing outside a window is multiplied, where a NaN would show.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias
from tflgpu.kernels.image_blocks import ImageBlock, blocks_of
from tflgpu.kernels.matrix_gemm import Operands
from tflgpu.kernels.matrix_tiles import Pitches, TileWork
from tflgpu.kernels.sharing import Result, each_item, items, maybe, store_results
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.matrix import MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import SUBGROUP, TILE, F16x4, Scalar, U32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import Weights
from tflgpu.ops.windows import Window
from tflgpu.values import evolve, frozen

#: Vectors of a group.
_GROUP = 4
#: Pixels of a row that a subgroup makes.
_WIDTH = 2 * TILE


@frozen
class ShallowTile(Pitches):
    """How the work is cut: a subgroup makes some rows of 32 pixels.

    Attributes:
        rows: Subgroups of a workgroup, along rows of the image.
        block_rows: Rows of the image of a subgroup.
        block_cols: Tiles of a workgroup along channels.
    """

    rows: int
    block_rows: int
    block_cols: int

    @property
    def height(self) -> int:
        """Rows of the image of a workgroup."""
        return self.rows * self.block_rows

    @property
    def slices(self) -> int:
        """Channel slices of a workgroup."""
        return self.block_cols * (TILE // 4)

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.rows * SUBGROUP


@frozen
class _Cut:
    """A tile with what follows from it for a window over so many slices of an input."""

    tile: ShallowTile
    window: Window
    inner: int

    @property
    def sides(self) -> tuple[int, int]:
        """Rows that are staged, and vectors of each, which are even."""
        window = self.window
        height = (self.tile.height - 1) * window.stride_h + window.kernel_h
        width = (_WIDTH - 1) * window.stride_w + window.kernel_w
        return height, (width + width % 2) * self.inner

    @property
    def starts(self) -> list[int]:
        """The first taps of the groups of a row."""
        taps, width = _GROUP // self.inner, self.window.kernel_w
        return [min(start, width - taps) for start in range(0, width, taps)]

    @property
    def steps(self) -> int:
        """Groups of the window."""
        return self.window.kernel_h * len(self.starts)

    @property
    def words(self) -> int:
        """Pairs of vectors that the weights, and then the sums, take of shared memory."""
        sums = self.tile.height * _WIDTH * self.tile.out_pitch
        return max(self.steps * TILE * self.tile.b_pitch, sums)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        height, width = self.sides
        return (2 // self.inner) * height * width * 8 + 16 * self.words

    def work(self, pixels: int, slices: int) -> TileWork:
        """What a convolution to so many output pixels and slices does."""
        tile, (height, width) = self.tile, self.sides
        words, blocks = self.steps * TILE * tile.slices // 2, 2 * tile.block_rows
        groups = blocks_of(self.window, pixels, tile.height, _WIDTH)
        return TileWork(
            workgroups=groups * -(-slices // tile.slices),
            subgroups=tile.rows,
            shared_bytes=self.shared_bytes,
            registers=40 + 8 * blocks * tile.block_cols,
            stages=1,
            ahead=1,
            words=height * width // self.inner + words,
            a_lines=height * max(1, width / 16),
            b_lines=self.steps * TILE * max(1, tile.slices / 16),
            fetched=-(-height * width // tile.threads) + -(-words // tile.threads),
            loads=(blocks + tile.block_cols) * self.steps,
            products=blocks * tile.block_cols * self.steps,
            barriers=1,
            results=tile.height * _WIDTH * tile.slices,
        )


#: The quickest of eleven for windows of 9x9 (3 to 8, and 8 to 3 channels) and 7x7 (3 to 64).
SHALLOW_TILES = (ShallowTile(4, 2, 1), ShallowTile(4, 2, 2))
#: Narrower windows are as fast tap by tap.
_LEAST_WIDTH = 5


def shallow_for(
    low: Lowering, problem: Problem, operands: Operands
) -> Mapping[ShallowTile, TileWork]:
    """The ways to cut a product as that of a window over few channels; none where it is not one, or
    an operand is of another form."""
    window, caps = problem.window, low.caps
    if window is None or operands.products > 1 or window.stride_w > 2:
        return {}
    inner = -(-low.node.input(0).shape[3] // 4)
    if inner > 2:
        return {}
    if window.kernel_w < _LEAST_WIDTH or (window.dilation_h, window.dilation_w) != (1, 1):
        return {}
    if StoredWeights.on(caps, problem.weights).weights is not problem.weights:
        return {}
    cuts = [_Cut(tile, window, inner) for tile in SHALLOW_TILES]
    return {
        cut.tile: cut.work(problem.pixels, problem.slices)
        for cut in cuts
        if cut.shared_bytes <= caps.shared_bytes and cut.tile.threads <= caps.most_members
    }


def build_matrix_shallow(low: Lowering, problem: Problem, tile: ShallowTile, name: str) -> None:
    """Write the kernel and dispatch it."""
    k, window = low.kernel(name, (tile.threads, 1, 1)), problem.window
    assert window is not None
    src = evolve(low.read_value(k, low.node.input(0), "src0"), compute=Scalar.F32)
    cut = _Cut(tile, window, src.slices)
    weights = low.weight_pairs(k, Weights(_packed(low.node.const(1), cut)))
    product, bias = bind_bias(low, k, problem, StoredWeights(problem.weights))
    low.body(k, _write, product, cut, problem.turn, src, weights, bias, low.write(k))
    blocks = blocks_of(window, problem.pixels, tile.height, _WIDTH)
    low.dispatch_groups(k, (-(-problem.slices // tile.slices), blocks, 1))


def _packed(ohwi: Array, cut: _Cut) -> Array:
    """[workgroup along channels, row of the window, group, tap of it, input, output of the
    workgroup], zero-padded, and zero for taps that the group before has."""
    outs, height, _, inner = ohwi.shape
    starts, width, taps = cut.starts, cut.tile.slices * 4, _GROUP // cut.inner
    groups = -(-outs // width)
    packed = np.zeros((height, len(starts), taps, cut.inner * 4, groups * width), np.float32)
    for i, start in enumerate(starts):
        mine = ohwi[:, :, i * taps : start + taps]
        packed[:, i, i * taps - start :, :inner, :outs] = mine.transpose(1, 2, 3, 0)
    return np.ascontiguousarray(packed.reshape(-1, groups, width).transpose(1, 0, 2))


def _write(
    k: Builder,
    problem: MatrixProduct,
    cut: _Cut,
    turn: int | None,
    src: ReadView,
    weights: KernelBuffer,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    tile, window, inner, (staged, row_size) = cut.tile, cut.window, cut.inner, cut.sides
    lane, subgroup = k.let(k.local_id(0), "lx"), k.let(k.subgroup_id(), "subgroup")
    block = ImageBlock(k, window, tile.height, _WIDTH, k.group_id(1))
    # The second has the vector behind at each place.
    a = [k.shared(f"a{i}", F16x4, staged * row_size) for i in range(2 // inner)]
    words = k.shared("words", U32x4, cut.words)
    half = tile.slices // 2
    count = cut.steps * TILE * half
    moves = items(k, lane, count, tile.threads)
    loaded = [k.let(k.load(weights, k.group_id(0) * count + item), "b") for item, _ in moves]

    def stage(item: Expr, value: Expr) -> None:
        k.store_shared(a[0], item, value)
        if inner == 1:
            with k.if_(item > 0):
                k.store_shared(a[1], item - 1, value)

    for item, exists in each_item(k, lane, staged * row_size, tile.threads):
        x = item % row_size // inner
        from_, inside = block.source(item // row_size, x, src.shape, turn)
        value = k.cast(src.load(from_, item % inner), Scalar.F16)
        value = k.let(k.select(inside, value, k.const(0, F16x4)), "a")
        maybe(k, exists, lambda item=item, value=value: stage(item, value))  # type: ignore[misc]
    for (item, exists), value in zip(moves, loaded, strict=True):
        at = k.let(item // half * tile.b_pitch + item % half, "ib")
        put = lambda at=at, value=value: k.store_shared(words, at, value)  # noqa: E731
        maybe(k, exists, put)
    k.barrier()
    # Of a row's two tiles: every second pixel, or one behind the other.
    step_size, pitch = window.stride_w * inner, tile.out_pitch
    far = 1 if step_size == 1 else TILE * step_size
    places = [(i, j * far) for i in range(tile.block_rows) for j in range(2)]
    sums = [[k.matrix_fill() for _ in range(tile.block_cols)] for _ in places]
    a0 = k.let(subgroup * (tile.block_rows * window.stride_h * row_size), "a0")
    for step in range(cut.steps):
        dy, start = divmod(step, len(cut.starts))
        left = []
        for i, shift in places:
            down, column = i * window.stride_h + dy, cut.starts[start] * inner + shift
            at = a0 + (down * row_size + column - column % 2)
            left.append(k.matrix_load(a[column % 2], at, max(2, step_size), MatrixRole.A, "l"))
        for j in range(tile.block_cols):
            at = k.i32(step * TILE * tile.b_pitch + j * 2)
            right = k.matrix_load(words, at, tile.b_pitch, MatrixRole.B, "r")
            for totals, matrix in zip(sums, left, strict=True):
                k.matrix_multiply(totals[j], matrix, right)
    k.barrier()
    base = k.let(subgroup * (tile.block_rows * _WIDTH * pitch), "mine")
    for i, totals in enumerate(sums):
        for j, total in enumerate(totals):
            k.matrix_store(words, base + (i * TILE * pitch + j * 4), pitch, total)
    k.barrier()

    def result(item: Expr) -> Result:
        pixel = k.let(item // tile.slices, "pixel")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        y, x = k.let(pixel // _WIDTH, "y"), k.let(pixel % _WIDTH, "x")
        row = y * _WIDTH + (x // 2 + x % 2 * TILE if step_size == 1 else x)
        at = k.let(row * pitch + item % tile.slices, "at")
        total = k.let(k.bitcast(k.load_shared(words, at), Scalar.F32), "total")
        valid, to = block.result(y, x)
        valid &= column < problem.slices
        column = k.let(k.min(column, problem.slices - 1), "column")
        return valid, to, problem.first + column, problem.end(k, bias, column)(total)

    count = tile.height * _WIDTH * tile.slices
    store_results(k, out, items(k, lane, count, tile.threads), result)
