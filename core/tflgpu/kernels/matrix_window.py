"""A convolution on matrix tiles that reads an input pixel once for all taps of its window.

A workgroup makes a block of an image, 16 pixels wide, for some output channels. By stages of input
channels it stages the block's inputs with the border that the window reaches, and the weights of
all taps; a tap's pixels are 16 neighbours of a row of what is staged, so that they are a tile as
they lie, and are read where they lie for every tap. `matrix_gemm` stages them for each tap anew.
"""

from __future__ import annotations

from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias
from tflgpu.kernels.image_blocks import ImageBlock, blocks_of
from tflgpu.kernels.matrix_gemm import Operands
from tflgpu.kernels.matrix_tiles import Pitches, TileWork
from tflgpu.kernels.sharing import Result, items, maybe, store_results
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.matrix import MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import SUBGROUP, TILE, Scalar, U32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import PairView, WriteView
from tflgpu.ops.windows import Window
from tflgpu.values import frozen


@frozen
class WindowTile(Pitches):
    """How the work is cut.

    Attributes:
        rows, cols: Subgroups of a workgroup, along rows of the image and along channels.
        block_rows: Rows of the image of a subgroup, whose tile of each is 16 pixels wide.
        block_cols: Tiles of a subgroup along channels.
        depth: Input slices of a stage, a multiple of 4.
    """

    rows: int
    cols: int
    block_rows: int
    block_cols: int
    depth: int

    @property
    def height(self) -> int:
        """Rows of the image of a workgroup."""
        return self.rows * self.block_rows

    @property
    def slices(self) -> int:
        """Channel slices of a workgroup."""
        return self.cols * self.block_cols * (TILE // 4)

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.rows * self.cols * SUBGROUP

    def sides(self, window: Window) -> tuple[int, int]:
        """Rows and columns of the image that are staged."""
        reach = (window.kernel_h - 1) * window.dilation_h, (window.kernel_w - 1) * window.dilation_w
        return self.height + reach[0], TILE + reach[1]

    def blocks(self, window: Window, pixels: int) -> int:
        """Blocks of all images, by the pixels of the output."""
        return blocks_of(window, pixels, self.height, TILE)

    def shared_words(self, window: Window) -> int:
        """Elements of shared memory of a workgroup, of 16 bytes."""
        height, width = self.sides(window)
        taps = window.kernel_h * window.kernel_w
        stage = height * width * self.a_pitch + taps * self.depth * 4 * self.b_pitch
        return max(stage, self.height * TILE * self.out_pitch)


#: Each was the best for some shape.
WINDOW_TILES = (
    WindowTile(2, 1, 2, 1, 4),
    WindowTile(2, 2, 4, 1, 4),
    WindowTile(4, 1, 2, 1, 8),
    WindowTile(4, 2, 2, 1, 8),
    WindowTile(8, 1, 2, 1, 4),
    WindowTile(8, 1, 2, 2, 8),
)


def windows_for(low: Lowering, problem: Problem, operands: Operands) -> dict[WindowTile, TileWork]:
    """The ways to cut a product as a window's on a device; none where it is no window's that moves
    by one pixel, or an operand is of another form."""
    window, caps = problem.window, low.caps
    if (
        window is None
        or (window.stride_h, window.stride_w) != (1, 1)
        or operands.products > 1
        or not low.lies_in_pairs(low.node.input(0))
        or problem.slices % 2
    ):
        return {}
    if StoredWeights.on(caps, problem.weights).weights is not problem.weights:
        return {}
    taps = window.kernel_h * window.kernel_w
    return {
        tile: window_work(tile, window, problem.pixels, problem.slices, problem.depth)
        for tile in WINDOW_TILES
        if problem.depth // taps % tile.depth == 0
        and 16 * tile.shared_words(window) <= caps.shared_bytes
        and tile.threads <= caps.most_members
    }


def window_work(tile: WindowTile, window: Window, pixels: int, slices: int, depth: int) -> TileWork:
    """What a convolution of so many output pixels and slices, and slices of its sums, does."""
    height, width = tile.sides(window)
    taps = window.kernel_h * window.kernel_w
    a_words, b_words = height * width * tile.depth // 2, taps * tile.depth * 2 * tile.slices
    fetched = -(-a_words // tile.threads) + -(-b_words // tile.threads)
    block, steps = tile.block_rows * tile.block_cols, taps * tile.depth // 4
    return TileWork(
        workgroups=tile.blocks(window, pixels) * -(-slices // tile.slices),
        subgroups=tile.threads // SUBGROUP,
        shared_bytes=16 * tile.shared_words(window),
        registers=40 + 8 * block + 4 * fetched,
        stages=depth // taps // tile.depth,
        ahead=1,
        words=a_words + b_words,
        a_lines=height * width * max(1, tile.depth / 16),
        b_lines=taps * tile.depth * 4 * max(1, tile.slices / 16),
        fetched=fetched,
        loads=(tile.block_rows + tile.block_cols) * steps,
        products=block * steps,
        barriers=2,
        results=tile.height * TILE * tile.slices,
    )


def build_matrix_window(low: Lowering, problem: Problem, tile: WindowTile, name: str) -> None:
    """Write the kernel of a convolution whose input lies in pairs, and dispatch it."""
    k = low.kernel(name, (tile.threads, 1, 1))
    src = low.read_pairs(k, low.node.input(0))
    assert problem.window is not None
    weights = low.weight_pairs(k, problem.weights)
    product, bias = bind_bias(low, k, problem, StoredWeights(problem.weights))
    given = (problem.window, problem.turn, tile, src, weights, bias, low.write(k))
    low.body(k, _write, product, *given)
    blocks = tile.blocks(problem.window, problem.pixels)
    low.dispatch_groups(k, (-(-problem.slices // tile.slices), blocks, 1))


def _write(
    k: Builder,
    problem: MatrixProduct,
    window: Window,
    turn: int | None,
    tile: WindowTile,
    src: PairView,
    weights: KernelBuffer,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    lane = k.let(k.local_id(0), "lx")
    subgroup = k.let(k.subgroup_id(), "subgroup")
    srow, scol = k.let(subgroup // tile.cols, "srow"), k.let(subgroup % tile.cols, "scol")
    block = ImageBlock(k, window, tile.height, TILE, k.group_id(1))
    staged_h, staged_w = tile.sides(window)
    taps = window.kernel_h * window.kernel_w
    words = k.shared("words", U32x4, tile.shared_words(window))
    behind = staged_h * staged_w * tile.a_pitch

    def put(exists: Expr | None, to: Expr, value: Expr) -> None:
        maybe(k, exists, lambda: k.store_shared(words, to, value))

    # What an invocation moves of a stage, and where that begins.
    half, columns = tile.depth // 2, tile.slices // 2
    moves = []
    for item, exists in items(k, lane, staged_h * staged_w * half, tile.threads):
        pixel = k.let(item // half, "pixel")
        from_, inside = block.source(pixel // staged_w, pixel % staged_w, src.shape, turn)
        to = k.let(pixel * tile.a_pitch + item % half, "to")
        moves.append((from_, item % half * 2, inside, to, exists))
    b_moves = []
    last = (problem.slices - 1) // 2
    for item, exists in items(k, lane, taps * tile.depth * 4 * columns, tile.threads):
        row = k.let(item // columns, "row")
        first = row // (tile.depth * 4) * (src.slices * 4)
        column = k.group_id(0) * columns + item % columns
        if problem.slices % tile.slices:
            column = k.min(column, last)
        at = (first + row % (tile.depth * 4)) * (problem.slices // 2) + column
        b_moves.append((k.let(at, "wat"), k.let(row * tile.b_pitch + item % columns, "to"), exists))

    sums = [[k.matrix_fill() for _ in range(tile.block_cols)] for _ in range(tile.block_rows)]
    with k.loop(0, src.slices // tile.depth, name="stage") as stage:
        first = k.let(stage * tile.depth, "first")
        loaded = [k.let(src.load(m[0], first + m[1]), "a") for m in moves]
        skip = first * (4 * (problem.slices // 2))
        loaded_b = [k.let(k.load(weights, m[0] + skip), "b") for m in b_moves]
        for value, (_, _, inside, to, exists) in zip(loaded, moves, strict=True):
            counted = k.select(inside, value, k.const(0, U32x4))
            put(exists, to, counted)
        for value, (_, to, exists) in zip(loaded_b, b_moves, strict=True):
            put(exists, behind + to, value)
        k.barrier()
        a0 = k.let(srow * (tile.block_rows * staged_w * tile.a_pitch), "a0")
        b0 = k.let(scol * (tile.block_cols * 2) + behind, "b0")
        for tap in range(taps):
            dy, dx = divmod(tap, window.kernel_w)
            shift = dy * window.dilation_h * staged_w + dx * window.dilation_w
            for s in range(tile.depth // 4):
                left = [
                    k.matrix_load(
                        words,
                        a0 + ((i * staged_w + shift) * tile.a_pitch + s * 2),
                        tile.a_pitch,
                        MatrixRole.A,
                        "l",
                    )
                    for i in range(tile.block_rows)
                ]
                for j in range(tile.block_cols):
                    step = (tap * tile.depth + s * 4) * 4
                    right = k.matrix_load(
                        words, b0 + (step * tile.b_pitch + j * 2), tile.b_pitch, MatrixRole.B, "r"
                    )
                    for i in range(tile.block_rows):
                        k.matrix_multiply(sums[i][j], left[i], right)
        k.barrier()

    pitch = tile.out_pitch
    base = k.let(srow * (tile.block_rows * TILE * pitch) + scol * (tile.block_cols * 4), "mine")
    for i in range(tile.block_rows):
        for j in range(tile.block_cols):
            k.matrix_store(words, base + (i * TILE * pitch + j * 4), pitch, sums[i][j])
    k.barrier()

    def result(item: Expr) -> Result:
        pixel = k.let(item // tile.slices, "pixel")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        valid, row = block.result(pixel // TILE, pixel % TILE)
        at = k.let(pixel * pitch + item % tile.slices, "at")
        total = k.let(k.bitcast(k.load_shared(words, at), Scalar.F32), "total")
        valid &= column < problem.slices
        column = k.let(k.min(column, problem.slices - 1), "column")
        return valid, row, problem.first + column, problem.end(k, bias, column)(total)

    results = items(k, lane, tile.height * TILE * tile.slices, tile.threads)
    store_results(k, out, results, result)
