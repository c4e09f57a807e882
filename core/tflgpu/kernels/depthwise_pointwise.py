"""DEPTHWISE_CONV_2D and the CONV_2D of 1x1 that reads it, as one product on matrix tiles.

A workgroup makes some channels of a few pixels. It computes the depthwise convolution of these
pixels into shared memory, as the product's first operand: the tensor in between is never written,
and there is a dispatch less to wait for. In return a depthwise value is computed by every workgroup
that makes other channels of its pixel.

Pixels are taken in runs of neighbours along a row, which see much of the same; rows are padded to
whole runs, which gives each pixel a position of its own. As in `matrix_gemm`, teams of subgroups
divide the sum, an operand is one f16 value or two, and sums are f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.conv import FAMILY, constant_weights, conv_problem
from tflgpu.kernels.depthwise import WindowSums, columns_of, read_channels
from tflgpu.kernels.gemm import MatrixProduct, bind_bias, pack_bias
from tflgpu.kernels.matrix_gemm import parts_of_weights, split_operands, weight_readers
from tflgpu.kernels.matrix_stage import LOW_SCALE, Reader, halves, packed
from tflgpu.kernels.pair_tiles import RUN, PairSize, PairTile, choose_pair_tile, is_faster_as_one
from tflgpu.kernels.sharing import each_item, items, maybe
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import TILE, F16x4, Scalar, U32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import GroupRule, Maker, Site
from tflgpu.lowering.stored_types import storage_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import Weights
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import Window, conv_window
from tflgpu.values import evolve, frozen

#: Larger windows take many reads for each vector that is computed again.
_MOST_TAPS = 25


def depthwise_before(node: Node, maker: Maker, site: Site) -> Node | None:
    """The depthwise convolution whose result a CONV_2D of 1x1 alone reads, if matrix tiles can make
    both as one kernel."""
    first = maker(node.input(0))
    if first is None or first.op != "DEPTHWISE_CONV_2D" or not _is_pointwise(node):
        return None
    if constant_weights(node, site) or FAMILY.on_matrices(node, site):
        return None
    if FAMILY.few_rows(node, site) is None:
        return None
    if any(v is not None and not v.is_const for v in first.inputs[1:]):
        return None
    _, height, width, outs = first.input(1).shape
    return first if outs == first.input(0).shape[3] and height * width <= _MOST_TAPS else None


def _match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    first = depthwise_before(node, maker, site)
    if first is None:
        return None
    size = _size(first, node, site.precision, site.caps)
    tile = choose_pair_tile(size, site.caps)
    if tile is None:
        return None
    pays = is_faster_as_one(tile, size, site.caps)
    nodes = (first, node)
    return nodes if site.joins("depthwise_pointwise", nodes, predicted=pays) else None


def _is_pointwise(node: Node) -> bool:
    """Whether a CONV_2D makes each pixel of one pixel, at the same place."""
    _, height, width, inner = node.input(1).shape
    image, made = node.input(0).shape, node.outputs[0].shape
    return (height, width) == (1, 1) and image[:3] == made[:3] and image[3] == inner


def _size(first: Node, node: Node, precision: Precision, caps: DeviceCaps) -> PairSize:
    batch, height, width, outs = node.outputs[0].shape
    window = conv_window(first)
    storage = storage_of(node.input(0), precision, caps)
    is_half = precision is Precision.F16 or storage is Scalar.F16
    return PairSize(
        batch * height * -(-width // RUN) * RUN,
        -(-outs // 4),
        -(-int(node.input(0).shape[3]) // 4),
        1 if is_half else 2,
        parts_of_weights(Weights(node.contents(1)), precision, caps),
        len(columns_of(window, RUN)) * window.kernel_h,
    )


@frozen
class _Depthwise:
    """All of the depthwise convolution that the kernel depends on, besides its buffers."""

    window: Window
    height: int
    width: int
    slices: int
    activation: Activation

    def positions(self, rows: int) -> int:
        """Positions of so many rows of the result."""
        return rows * -(-self.window.out_w // RUN) * RUN


@frozen
class _Buffers:
    """What is bound to the kernel."""

    src: ReadView
    taps: ReadView
    bias_before: KernelBuffer
    weights: tuple[Reader, ...]
    bias: KernelBuffer
    out: WriteView
    masked: bool  # whether weights past the end of the sum have to be made zeros


def build_pair(low: Lowering) -> None:
    """Write the kernel of both nodes and dispatch it."""
    first, node = low.nodes
    problem = conv_problem(low)
    operands = split_operands(low, problem)
    window = conv_window(first)
    _, height, width, channels = first.input(0).shape
    before = _Depthwise(window, height, width, -(-channels // 4), first.attrs.activation)
    size = _size(first, node, low.precision, low.caps)
    tile = choose_pair_tile(size, low.caps, low.choose)
    assert tile is not None  # as when they were matched

    k = low.kernel("depthwise_pointwise", (tile.threads, 1, 1))
    src = evolve(low.read_value(k, first.input(0), "src"), compute=Scalar.F32)
    taps = evolve(low.read_value(k, first.input(1), "taps"), compute=Scalar.F32)
    offsets = first.optional_input(2)
    data = None if offsets is None or offsets.data is None else offsets.data.reshape(-1)
    bias_before = low.weights(k, pack_bias(data, channels), "bias_before", scalar=Scalar.F32)
    stored = StoredWeights.on(low.caps, problem.weights)
    weights = weight_readers(low, k, problem, operands, stored)
    product, bound = bind_bias(low, k, problem, stored)
    masked = problem.depth % tile.chunk != 0 and not problem.ends_finite
    buffers = _Buffers(src, taps, bias_before, weights, bound, low.write(k), masked)
    low.body(k, _write, product, before, tile, buffers, operands.inputs)
    groups = (-(-problem.slices // tile.slices), -(-size.positions // tile.pixels), 1)
    low.dispatch_groups(k, groups)


def _write(
    k: Builder,
    product: MatrixProduct,
    before: _Depthwise,
    tile: PairTile,
    buffers: _Buffers,
    inputs: int,
) -> None:
    lane = k.let(k.local_id(0), "lane")
    subgroup = k.let(k.subgroup_id(), "subgroup")
    team_size = tile.rows * tile.cols
    team = k.let(subgroup // team_size, "team") if tile.split > 1 else k.i32(0)
    stage = _Stage(k, product, before, tile, buffers, inputs)
    row, col = subgroup % team_size // tile.cols, subgroup % tile.cols
    a0 = team * tile.depth + row * (tile.block_rows * TILE * tile.a_pitch)
    b0 = team * (tile.depth * 4 * tile.b_pitch) + col * (tile.block_cols * 2)
    sums = _Sums(k, tile, stage, k.let(a0, "a0"), k.let(b0, "b0"))
    span = tile.depth * tile.split
    with k.loop(0, -(-product.depth // tile.chunk), name="chunk", unroll=False) as chunk:
        q0 = k.let(chunk * tile.chunk, "q0")
        fetched = [stage.fetch(q0 + s * span if s else q0) for s in range(tile.stages)]
        stage.fill(q0)
        for s, weights in enumerate(fetched):
            stage.commit(weights)
            k.barrier()
            sums.accumulate(s * span)
            k.barrier()
    row0 = team * tile.pixels + row * (tile.block_rows * TILE)
    sums.share(k.let(row0 * tile.out_pitch + col * (tile.block_cols * 4), "mine"))
    k.barrier()
    positions = stage.positions
    width, pitch = before.window.out_w, -(-before.window.out_w // RUN) * RUN
    for item, inside in each_item(k, lane, tile.pixels * tile.slices, tile.threads):
        position = k.let(k.group_id(1) * tile.pixels + item // tile.slices, "position")
        column = k.let(k.group_id(0) * tile.slices + item % tile.slices, "column")
        valid = (position < positions) & (column < product.slices)
        row = position
        if pitch != width:
            x = k.let(position % pitch, "x")
            valid, row = valid & (x < width), k.let(position // pitch * width + x, "row")
        with k.if_(valid if inside is None else valid & inside):
            at = k.let(item // tile.slices * tile.out_pitch + item % tile.slices, "at")
            total = k.bitcast(k.load_shared(stage.words, at), Scalar.F32)
            for team_ in range(1, tile.split):
                other = at + team_ * tile.pixels * tile.out_pitch
                total = total + k.bitcast(k.load_shared(stage.words, other), Scalar.F32)
            end = product.end(k, buffers.bias, column)
            buffers.out.store(row, product.first + column, end(k.let(total, "total")))


class _Stage:
    """The operands in shared memory, as rows of f16 vectors: pixels x depth of a chunk, and, as the
    bits of two, depth x channels of a stage. The sums take the place of the weights at the end."""

    def __init__(
        self,
        k: Builder,
        product: MatrixProduct,
        before: _Depthwise,
        tile: PairTile,
        buffers: _Buffers,
        inputs: int,
    ) -> None:
        self._k, self._product, self._before, self._tile = k, product, before, tile
        self._buffers = buffers
        self.a = [k.shared(f"a{i}", F16x4, tile.a_size) for i in range(inputs)]
        self.parts = len(buffers.weights)
        self.words = k.shared("words", U32x4, tile.shared_words(self.parts))
        self.positions = before.positions(product.pixels // before.window.out_w)
        self._lane = k.let(k.local_id(0), "lid")
        count = tile.b_rows * (tile.slices // 2)
        self._items = items(k, self._lane, count, tile.threads)

    def fetch(self, q0: Expr) -> list[list[list[Expr]]]:
        """Start the loads of the weights of the stage that begins at slice ``q0``."""
        k, tile, product = self._k, self._tile, self._product
        limit, half = product.depth * 4, tile.slices // 2
        found = []
        for item, _ in self._items:
            row = k.let(q0 * 4 + item // half, "row")
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            there = k.let(row < limit, "there") if self._buffers.masked else None
            if product.depth % tile.chunk:
                row = k.let(k.min(row, limit - 1), "wrow")
            column = k.group_id(0) * tile.slices + item % half * 2
            if product.slices % tile.slices:
                column = k.min(column, product.slices - 1 - (product.slices - 1) % 2)
            column = k.let(column, "wcol")
            parts = []
            for weights in self._buffers.weights:
                values = [k.let(each, "w") for each in weights.read(k, row, column)]
                if there is not None:
                    values = [k.select(there, each, k.const(0, each.type)) for each in values]
                parts.append(values)
            found.append(parts)
        return found

    def commit(self, fetched: list[list[list[Expr]]]) -> None:
        """Put a stage's weights into shared memory."""
        k, tile = self._k, self._tile
        half = tile.slices // 2
        for (item, inside), parts in zip(self._items, fetched, strict=True):
            at = k.let(item // half * tile.b_pitch + item % half, "ib")
            maybe(k, inside, partial(self._commit_parts, at, parts))

    def _commit_parts(self, at: Expr, parts: list[list[Expr]]) -> None:
        for i, values in enumerate(parts):
            word = values[0] if len(values) == 1 else packed(self._k, values)
            self._k.store_shared(self.words, at + i * self._tile.b_size, word)

    def fill(self, q0: Expr) -> None:
        """Stage the pixels of the chunk that begins at slice ``q0``."""
        k, tile = self._k, self._tile
        for item, inside in each_item(k, self._lane, tile.runs, tile.threads):
            made = self._run(item, q0)
            at = item // tile.chunk * (RUN * tile.a_pitch) + item % tile.chunk
            maybe(k, inside, partial(self._store_run, k.let(at, "ia"), made))

    def _run(self, item: Expr, q0: Expr) -> list[Expr]:
        """A run of pixels of the depthwise convolution."""
        k, tile, before, window = self._k, self._tile, self._before, self._before.window
        blocks = -(-window.out_w // RUN)
        position = k.group_id(1) * tile.pixels + item // tile.chunk * RUN
        # Past the last pixel any pixel will do: its sums are never stored.
        block = k.let(k.min(position, self.positions - RUN) // RUN, "block")
        row = k.let(block // blocks, "row")
        x0 = k.let(block % blocks * (RUN * window.stride_w) - window.pad_left, "x0")
        y0 = k.let(row % window.out_h * window.stride_h - window.pad_top, "y0")
        image = k.let(row // window.out_h * before.height, "image")
        q = k.let(q0 + item % tile.chunk, "q")
        slice_ = k.let(k.min(q, before.slices - 1), "slice")
        offset = k.let(k.load(self._buffers.bias_before, slice_), "offset")
        sums = [k.var(offset, "acc") for _ in range(RUN)]
        read, taps = read_channels(self._buffers.src, 1), self._buffers.taps.load
        work = WindowSums(k, window, before.width, blocks, x0, slice_, read, taps, sums)
        work.add_all(y0, image, before.height)
        is_there, zero = k.let(q < before.slices, "there"), k.f32(0.0, 4)
        made = [activate(k, before.activation, total) for total in sums]
        return [k.let(k.select(is_there, each, zero), "made") for each in made]

    def _store_run(self, at: Expr, made: Sequence[Expr]) -> None:
        k = self._k
        for i, value in enumerate(made):
            parts = halves(k, value) if len(self.a) > 1 else (k.cast(value, Scalar.F16),)
            for array, part in zip(self.a, parts, strict=True):
                k.store_shared(array, at + i * self._tile.a_pitch, part)


class _Sums:
    """A subgroup's block of accumulators, twice where there are low parts."""

    def __init__(self, k: Builder, tile: PairTile, stage: _Stage, a0: Expr, b0: Expr) -> None:
        self._k, self._tile, self._stage, self._a0, self._b0 = k, tile, stage, a0, b0
        count = tile.block_rows * tile.block_cols
        has_low = len(stage.a) + stage.parts > 2
        self._high = [k.matrix_fill() for _ in range(count)]
        self._low = [k.matrix_fill() for _ in range(count if has_low else 0)]

    def accumulate(self, q: int) -> None:
        """Multiply the stage whose pixels begin at slice ``q`` of the chunk."""
        k, tile, stage = self._k, self._tile, self._stage
        for s in range(tile.depth // 4):
            rows = [
                self._a0 + (i * TILE * tile.a_pitch + q + s * 4) for i in range(tile.block_rows)
            ]
            left = [
                [k.matrix_load(array, at, tile.a_pitch, MatrixRole.A, "l") for array in stage.a]
                for at in rows
            ]
            for j in range(tile.block_cols):
                at = self._b0 + (s * TILE * tile.b_pitch + j * 2)
                right = [
                    k.matrix_load(
                        stage.words, at + part * tile.b_size, tile.b_pitch, MatrixRole.B, "r"
                    )
                    for part in range(stage.parts)
                ]
                for i, parts in enumerate(left):
                    self._multiply(i * tile.block_cols + j, parts, right)

    def _multiply(self, block: int, left: list[Matrix], right: list[Matrix]) -> None:
        k = self._k
        k.matrix_multiply(self._high[block], left[0], right[0])
        for a, b in [(left[1:], right[:1]), (left[:1], right[1:])]:
            if a and b:
                k.matrix_multiply(self._low[block], a[0], b[0])

    def share(self, base: Expr) -> None:
        """Put the sums into shared memory: teams x pixels x slices of f32 vectors."""
        k, tile, pitch = self._k, self._tile, self._tile.out_pitch
        for block, total in enumerate(self._high):
            i, j = divmod(block, tile.block_cols)
            if self._low:
                k.matrix_add(total, self._low[block], 1 / LOW_SCALE)
            at = base + (i * TILE * pitch + j * 4)
            k.matrix_store(self._stage.words, at, pitch, total)


RULES = (GroupRule("CONV_2D", "after_depthwise", _match, build_pair),)
