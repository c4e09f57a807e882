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

import attrs
import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.conv import FAMILY, constant_weights, conv_problem
from tflgpu.kernels.depthwise import WindowSums, read_channels
from tflgpu.kernels.gemm import MatrixProduct, pack_bias
from tflgpu.kernels.matrix_gemm import parts_of_weights, split_operands
from tflgpu.kernels.matrix_stage import LOW_SCALE, halves
from tflgpu.kernels.pair_tiles import RUN, PairSize, PairTile, choose_pair_tile, is_faster_as_one
from tflgpu.kernels.sharing import each_item, items, maybe
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import TILE, F16x4, F32x4, Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import GroupRule, Maker, Site
from tflgpu.lowering.stored_types import storage_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import Weights
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import Window, conv_window

#: Larger windows take many reads for each vector that is computed again.
_MOST_TAPS = 25


def _match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
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
    if outs != first.input(0).shape[3] or height * width > _MOST_TAPS:
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
    storage = storage_of(node.input(0), precision, caps)
    is_half = precision is Precision.F16 or storage is Scalar.F16
    return PairSize(
        batch * height * -(-width // RUN) * RUN,
        -(-outs // 4),
        -(-int(node.input(0).shape[3]) // 4),
        1 if is_half else 2,
        parts_of_weights(Weights(node.contents(1)), precision, caps),
        first.input(1).shape[1] * first.input(1).shape[2],
    )


@attrs.frozen
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


@attrs.frozen
class _Buffers:
    """What is bound to the kernel."""

    src: ReadView
    taps: ReadView
    bias_before: KernelBuffer
    weights: tuple[WeightReader, ...]
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
    src = attrs.evolve(low.read_value(k, first.input(0), "src"), compute=Scalar.F32)
    taps = attrs.evolve(low.read_value(k, first.input(1), "taps"), compute=Scalar.F32)
    offsets = first.optional_input(2)
    data = None if offsets is None or offsets.data is None else offsets.data.reshape(-1)
    bias_before = low.weights(k, pack_bias(data, channels), "bias_before", scalar=Scalar.F32)
    stored = StoredWeights.on(low.caps, problem.weights)
    if stored.weights is problem.weights:
        weights = tuple(
            WeightReader(
                low.weights(k, part, f"weights{i}", scalar=Scalar.F16), None, problem.slices
            )
            for i, part in enumerate(operands.weights)
        )
    else:
        weights = (stored.bind(low, k, problem.slices),)
    bias, scales = problem.bias, stored.channel_scales
    if scales is not None:
        bias = np.concatenate([bias, pack_bias(scales, problem.channels)])
    product = attrs.evolve(problem.product, has_scales=scales is not None)
    bound = low.weights(k, bias, "bias", scalar=Scalar.F32)
    masked = problem.depth % (tile.depth * tile.split) != 0 and not problem.ends_finite
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
    stage = _Stage(k, product, before, tile, buffers, inputs, team)
    a0 = team * tile.a_size + subgroup % team_size // tile.cols * (
        tile.block_rows * TILE * tile.a_pitch
    )
    b0 = team * tile.b_size + subgroup % tile.cols * (tile.block_cols * 4)
    sums = _Sums(k, tile, stage, k.let(a0, "a0"), k.let(b0, "b0"))
    stages = -(-product.depth // (tile.depth * tile.split))
    with k.loop(0, stages, name="stage", unroll=False) as step:
        stage.fill(k.let((step * tile.split + team) * tile.depth, "q0"))
        k.barrier()
        sums.accumulate()
        if stages > 1:
            k.barrier()
    row0 = team * tile.pixels + subgroup % team_size // tile.cols * (tile.block_rows * TILE)
    column0 = subgroup % tile.cols * (tile.block_cols * 4)
    result = sums.share(k.let(row0 * tile.out_pitch + column0, "mine"))
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
            total = k.load_shared(result, at)
            for other in range(1, tile.split):
                total = total + k.load_shared(result, at + other * tile.pixels * tile.out_pitch)
            end = product.end(k, buffers.bias, column)
            buffers.out.store(row, product.first + column, end(k.let(total, "total")))


class _Stage:
    """Both operands of a part of the sum in shared memory: rows of f16 vectors, pixels x depth and
    depth x channels."""

    def __init__(
        self,
        k: Builder,
        product: MatrixProduct,
        before: _Depthwise,
        tile: PairTile,
        buffers: _Buffers,
        inputs: int,
        team: Expr,
    ) -> None:
        self._k, self._product, self._before, self._tile = k, product, before, tile
        self._buffers, self._team = buffers, team
        parts = range(len(buffers.weights))
        self.a = [k.shared(f"a{i}", F16x4, tile.split * tile.a_size) for i in range(inputs)]
        self.b = [k.shared(f"b{i}", F16x4, tile.split * tile.b_size) for i in parts]
        rows = product.pixels // before.window.out_w
        self.positions = before.positions(rows)
        self._lane = k.let(k.local_id(0) % tile.team_threads, "lid")

    def fill(self, q0: Expr) -> None:
        """Stage the part that begins at slice ``q0``."""
        k, tile, product = self._k, self._tile, self._product
        held = []
        limit, ragged = product.depth * 4, product.depth % (tile.depth * tile.split) != 0
        count = tile.depth * 4 * tile.slices
        for item, inside in items(k, self._lane, count, tile.team_threads):
            row = q0 * 4 + item // tile.slices
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            there = k.let(row < limit, "there") if self._buffers.masked else None
            row = k.let(k.min(row, limit - 1) if ragged else row, "wrow")
            column = k.group_id(0) * tile.slices + item % tile.slices
            if product.slices % tile.slices:
                column = k.min(column, product.slices - 1)
            column = k.let(column, "wcol")
            values = []
            for weights in self._buffers.weights:
                value = k.let(k.cast(weights.row(k, row, column, Scalar.F16), Scalar.F16), "w")
                if there is not None:
                    value = k.let(k.select(there, value, k.const(0.0, value.type)), "w")
                values.append(value)
            held.append((item, inside, values))
        for item, inside in each_item(k, self._lane, tile.runs, tile.team_threads):
            made = self._run(item, q0)
            at = item // tile.depth * (RUN * tile.a_pitch) + item % tile.depth
            at = k.let(self._team * tile.a_size + at, "ia")
            maybe(k, inside, partial(self._store_run, at, made))
        for item, inside, values in held:
            at = item // tile.slices * tile.b_pitch + item % tile.slices
            at = k.let(self._team * tile.b_size + at, "ib")
            maybe(k, inside, partial(self._store_weights, at, values))

    def _run(self, item: Expr, q0: Expr) -> list[Expr]:
        """A run of pixels of the depthwise convolution."""
        k, tile, before, window = self._k, self._tile, self._before, self._before.window
        blocks = -(-window.out_w // RUN)
        position = k.group_id(1) * tile.pixels + item // tile.depth * RUN
        # Past the last pixel any pixel will do: its sums are never stored.
        block = k.let(k.min(position, self.positions - RUN) // RUN, "block")
        row = k.let(block // blocks, "row")
        x0 = k.let(block % blocks * (RUN * window.stride_w) - window.pad_left, "x0")
        y0 = k.let(row % window.out_h * window.stride_h - window.pad_top, "y0")
        image = k.let(row // window.out_h * before.height, "image")
        q = k.let(q0 + item % tile.depth, "q")
        slice_ = k.let(k.min(q, before.slices - 1), "slice")
        offset = k.let(k.load(self._buffers.bias_before, slice_), "offset")
        sums = [k.var(offset, "acc") for _ in range(RUN)]
        read, taps = read_channels(self._buffers.src, 1), self._buffers.taps
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

    def _store_weights(self, at: Expr, values: Sequence[Expr]) -> None:
        for array, value in zip(self.b, values, strict=True):
            self._k.store_shared(array, at, value)


class _Sums:
    """A subgroup's block of accumulators, twice where there are low parts."""

    def __init__(self, k: Builder, tile: PairTile, stage: _Stage, a0: Expr, b0: Expr) -> None:
        self._k, self._tile, self._stage, self._a0, self._b0 = k, tile, stage, a0, b0
        count = tile.block_rows * tile.block_cols
        has_low = len(stage.a) + len(stage.b) > 2
        self._high = [k.matrix_fill() for _ in range(count)]
        self._low = [k.matrix_fill() for _ in range(count if has_low else 0)]

    def accumulate(self) -> None:
        """Multiply what is staged."""
        k, tile = self._k, self._tile
        for s in range(tile.depth // 4):
            left = [
                [
                    k.matrix_load(
                        array,
                        self._a0 + (i * TILE * tile.a_pitch + s * 4),
                        tile.a_pitch,
                        MatrixRole.A,
                        "l",
                    )
                    for array in self._stage.a
                ]
                for i in range(tile.block_rows)
            ]
            for j in range(tile.block_cols):
                at = self._b0 + (s * TILE * tile.b_pitch + j * 4)
                right = [
                    k.matrix_load(array, at, tile.b_pitch, MatrixRole.B, "r")
                    for array in self._stage.b
                ]
                for i, parts in enumerate(left):
                    self._multiply(i * tile.block_cols + j, parts, right)

    def _multiply(self, block: int, left: list[Matrix], right: list[Matrix]) -> None:
        k = self._k
        k.matrix_multiply(self._high[block], left[0], right[0])
        for a, b in [(left[1:], right[:1]), (left[:1], right[1:])]:
            if a and b:
                k.matrix_multiply(self._low[block], a[0], b[0])

    def share(self, base: Expr) -> SharedArray:
        """Put the sums into shared memory: teams x pixels x slices."""
        k, tile, pitch = self._k, self._tile, self._tile.out_pitch
        result = k.shared("result", F32x4, tile.split * tile.pixels * pitch)
        for block, total in enumerate(self._high):
            i, j = divmod(block, tile.block_cols)
            if self._low:
                k.matrix_add(total, self._low[block], 1 / LOW_SCALE)
            k.matrix_store(result, base + (i * TILE * pitch + j * 4), pitch, total)
        return result


RULES = (GroupRule("CONV_2D", "after_depthwise", _match, build_pair),)
