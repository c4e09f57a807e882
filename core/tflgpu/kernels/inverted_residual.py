"""A CONV_2D of 1x1 that expands, the DEPTHWISE_CONV_2D behind it and the CONV_2D of 1x1 that reads
that, as one kernel on matrix tiles: neither tensor in between is ever written.

A workgroup makes all channels of a block of pixels. It stages the input of the block and of the
border that its windows see once, and then takes the expanded channels by chunks: it expands them
into shared memory as f32, makes the depthwise convolution of these as the first operand of the last
product, and adds up its sums in registers. The border is expanded by neighbours too.

The first bias is two more rows of the first product, its f16 value and the rest of it: the input
has ones there inside the image and zeros outside, so that zeros come of a pixel outside, as the
depthwise convolution's padding needs, and not what the bias would make of it. Every activation
leaves zero as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import add

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.block_tiles import TILES, BlockCut
from tflgpu.kernels.conv import constant_weights, conv_problem
from tflgpu.kernels.depthwise import WindowSums
from tflgpu.kernels.depthwise_pointwise import depthwise_before
from tflgpu.kernels.gemm import MatrixProduct, bind_bias, pack_bias
from tflgpu.kernels.image_blocks import ImageBlock, blocks_of
from tflgpu.kernels.matrix_stage import LOW_SCALE
from tflgpu.kernels.matrix_tiles import PAD
from tflgpu.kernels.sharing import Result, each_item, items, maybe, store_results
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import TILE, F16x4, Scalar, U32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import GroupRule, Maker, Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.lowering.weights import F16_MAX, Weights
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import conv_window

#: Slices that a pixel in between sees, at most: the first product is made in one stage.
_MOST_SEEN = 24


def _cuts(nodes: Sequence[Node], caps: DeviceCaps) -> list[BlockCut]:
    """The ways to cut a block of layers on a device."""
    expand, project = nodes[0], nodes[2]
    (first, window), (outs, _, _, inner) = map(conv_window, nodes[:2]), expand.input(1).shape
    slices = -(-inner // 4), outs // 4, -(-project.input(1).shape[0] // 4)
    cuts = [BlockCut(tile, first, window, *slices) for tile in TILES]
    return [
        cut
        for cut in cuts
        if cut.shared_bytes <= caps.shared_bytes and cut.threads <= caps.most_members
    ]


def _match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    depthwise, model = depthwise_before(node, maker, site), tuning_of(site.caps).blocks
    if depthwise is None or model is None or site.precision is not Precision.F16:
        return None
    expand = maker(depthwise.input(0))
    before = expand and maker(expand.input(0))
    # Behind another depthwise convolution, the first one makes a pair with that.
    if expand is None or expand.op != "CONV_2D" or (before and before.op == depthwise.op):
        return None
    nodes = (expand, depthwise, node)
    outs, height, width, inner = expand.input(1).shape
    if constant_weights(expand, site) or outs % 4 or inner != expand.input(0).shape[3]:
        return None
    if height * width * -(-inner // 4) > _MOST_SEEN:
        return None
    biases = [v.data for v in expand.inputs[2:] if v is not None and v.data is not None]
    numbers = [expand.const(1), node.const(1), *biases]
    if any(not (np.abs(each) <= F16_MAX).all() for each in numbers) or not _cuts(nodes, site.caps):
        return None
    images, height, width, _ = node.outputs[0].shape
    pays = (
        model.least_pixels <= images * height * width <= model.most_pixels
        and outs <= model.most_channels
        and math.prod(depthwise.input(1).shape[1:3]) <= model.most_taps
    )
    return nodes if site.joins("inverted_residual", nodes, predicted=pays) else None


def build_block(low: Lowering) -> None:
    """Write the kernel of the three nodes and dispatch it."""
    expand, depthwise, _ = low.nodes
    problem, cuts = conv_problem(low), _cuts(low.nodes, low.caps)
    sizes = (problem.pixels, cuts[0].inner, cuts[0].middle, cuts[0].outer)
    model, by_tile = tuning_of(low.caps).blocks, {cut.tile: cut for cut in cuts}
    assert model is not None  # as when they were matched
    costs = {c.tile: c.clocks(model, problem.pixels, low.caps.compute_units) for c in cuts}
    tile = low.choose("block", sizes, list(costs), costs.__getitem__)
    cut = by_tile[tile]
    k = low.kernel("inverted_residual", (cut.threads, 1, 1))
    src = low.read_value(k, expand.input(0), "src")
    packed = low.weight_pairs(k, Weights(_packed(cut, low.nodes)), "packed")
    product, bias = bind_bias(low, k, problem, StoredWeights(problem.weights))
    functions = (expand.attrs.activation, depthwise.attrs.activation)
    low.body(k, _write, product, cut, functions, src, packed, bias, low.write(k))
    low.dispatch_groups(k, (1, blocks_of(cut.window, problem.pixels, tile.height, tile.width), 1))


def _bias(node: Node, channels: int) -> Array:
    value = node.optional_input(2)
    data = None if value is None or value.data is None else value.data.reshape(-1)
    return pack_bias(data, channels)


def _packed(cut: BlockCut, nodes: Sequence[Node]) -> Array:
    """By chunk, as they lie in shared memory: what `BlockCut.sizes` says."""
    expand, depthwise, project = nodes
    count, width, channels = cut.chunks, cut.tile.chunk * 4, cut.middle * 4
    ohwi, bias = expand.const(1), _bias(expand, channels)
    whole = np.pad(ohwi, ((0, 0), (0, 0), (0, 0), (0, cut.inner * 4 - ohwi.shape[3])))
    high = bias.astype(np.float16)
    first = np.zeros((cut.steps * TILE, count * width), np.float16)
    first[: cut.seen * 4, :channels] = whole.reshape(channels, -1).T
    first[cut.seen * 4, :channels] = high
    first[cut.seen * 4 + 1, :channels] = (bias - high) * LOW_SCALE
    taps = depthwise.const(1).reshape(-1, channels)
    middle = np.zeros((1 + len(taps), count * width), np.float32)
    middle[:, :channels] = np.concatenate([_bias(depthwise, channels)[np.newaxis], taps])
    last = np.zeros((count * width, cut.across * TILE), np.float16)
    last[:channels, : project.input(1).shape[0]] = project.const(1)[:, 0, 0].T
    parts = (
        _in_rows(first.reshape(-1, count, width).transpose(1, 0, 2)),
        middle.reshape(-1, count, cut.tile.chunk, 4).transpose(1, 2, 0, 3),
        _in_rows(last.reshape(count, width, -1)),
    )
    chunks = [np.ascontiguousarray(part).reshape(count, -1).view(np.uint32) for part in parts]
    return np.concatenate(chunks, axis=1).view(np.float16)


def _in_rows(chunks: Array) -> Array:
    """Rows of f16 with what lies between them in shared memory."""
    return np.pad(chunks, ((0, 0), (0, 0), (0, PAD * 4)))


def _write(
    k: Builder,
    product: MatrixProduct,
    cut: BlockCut,
    functions: tuple[Activation, Activation],
    src: ReadView,
    packed: KernelBuffer,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    tile = cut.tile
    lane, subgroup = k.let(k.local_id(0), "lx"), k.let(k.subgroup_id(), "subgroup")
    block = ImageBlock(k, cut.window, tile.height, tile.width, k.group_id(1))
    x = k.shared("x", F16x4, cut.rows * cut.x_pitch)
    middle = k.shared("middle", F16x4, cut.pixels * cut.middle_pitch)
    sums = k.shared("sums", U32x4, cut.words)
    weights = k.shared("weights", U32x4, sum(cut.sizes))
    # The last product's weights are replaced later, when no subgroup reads the others any more.
    begin = sum(cut.sizes[:2])
    parts = [
        [
            (k.let(start + item, "word"), there, k.var(k.load(packed, start + item), "held"))
            for item, there in items(k, lane, count, cut.threads)
        ]
        for start, count in ((0, begin), (begin, cut.sizes[2]))
    ]
    _stage(k, cut, lane, block, src, x)

    def commit(part: int) -> None:
        for at, there, held in parts[part]:
            maybe(k, there, partial(k.store_shared, weights, at, held))

    def multiply(total: Matrix, left: SharedArray, at: Expr, pitch: int, right: Expr) -> None:
        a = k.matrix_load(left, at, pitch, MatrixRole.A, "l")
        pitch = cut.middle_pitch if left is x else cut.across * 4 + PAD
        b = k.matrix_load(weights, right, pitch // 2, MatrixRole.B, "r")
        k.matrix_multiply(total, a, b)

    totals = []
    for i in range(cut.summed):
        at = k.let(subgroup * cut.summed + i, "at")
        # Past the last share the first are made again.
        share, of_share = k.let(at // cut.results, "share"), k.let(at % cut.results, "of_share")
        row = k.let(of_share // cut.across * TILE, "row")
        totals.append((k.matrix_fill(), share, row, k.let(of_share % cut.across, "column")))
    with k.loop(0, cut.chunks, name="chunk", unroll=False) as chunk:
        commit(0)
        k.barrier()
        for i in range(cut.expanded):
            at = k.let(subgroup * cut.expanded + i, "at")
            row, column = k.let(at // cut.columns * TILE, "row"), at % cut.columns
            total, pitch = k.matrix_fill(), cut.middle_pitch
            for step in range(cut.steps):
                right = step * (TILE * pitch // 2) + column * 2
                multiply(total, x, row * cut.x_pitch + step * 4, cut.x_pitch, right)
            k.matrix_store(sums, row * (pitch - 1) + column * 4, pitch - 1, total)
        commit(1)
        following = k.let(k.min(chunk + 1, cut.chunks - 1) * sum(cut.sizes), "next")
        for at, _, held in (*parts[0], *parts[1]):
            k.set(held, k.load(packed, following + at))
        k.barrier()
        _convolve(k, cut, functions, lane, chunk, (sums, weights, middle))
        k.barrier()
        steps = cut.columns // cut.split
        for total, share, row, column in totals:
            for i in range(steps):
                at = k.let(share % cut.split * steps + i, "step")
                right = at * (TILE * (cut.across * 2 + PAD // 2)) + column * 2 + begin
                left = row * cut.middle_pitch + at * 4
                multiply(total, middle, left, cut.middle_pitch, right)
    pitch = cut.out_pitch
    for total, share, row, column in totals:
        at = (share * cut.pixels + row) * pitch + column * 4
        k.matrix_store(sums, at, pitch, total)
    k.barrier()

    def result(item: Expr) -> Result:
        pixel, column = k.let(item // cut.outer, "pixel"), k.let(item % cut.outer, "column")
        valid, to = block.result(pixel // tile.width, pixel % tile.width)
        at = k.let(pixel * pitch + column, "at")
        shares = [at + share * cut.pixels * pitch for share in range(cut.split)]
        total = reduce(add, [_number(k, sums, each) for each in shares])
        return valid, to, column, product.end(k, bias, column)(k.let(total, "total"))

    store_results(k, out, items(k, lane, cut.pixels * cut.outer, cut.threads), result)


def _number(k: Builder, array: SharedArray, at: Expr) -> Expr:
    return k.bitcast(k.load_shared(array, at), Scalar.F32)


def _stage(
    k: Builder, cut: BlockCut, lane: Expr, block: ImageBlock, src: ReadView, words: SharedArray
) -> None:
    """Put the input into shared memory, with ones behind its channels inside the image."""
    width, slices, first = cut.sides[1], cut.steps * 4, cut.first
    between = (0, first.out_h, first.out_w, 0)
    ones = k.vec([k.const(n, F16x4.with_width(1)) for n in (1.0, 1 / LOW_SCALE, 0.0, 0.0)])
    staged = []
    for item, there in items(k, lane, cut.rows * slices, cut.threads):
        pixel, q = k.let(item // slices, "pixel"), k.let(item % slices, "q")
        y, x = block.seen(pixel // width, pixel % width)
        _, inside = block.within(y, x, between)
        tap = k.let(k.min(q, cut.seen - 1) // cut.inner, "tap")
        y = y * first.stride_h - first.pad_top + tap // first.kernel_w * first.dilation_h
        x = x * first.stride_w - first.pad_left + tap % first.kernel_w * first.dilation_w
        at, counts = block.within(k.let(y, "y"), k.let(x, "x"), src.shape)
        value = k.let(src.load(at, k.let(q % cut.inner, "slice")), "v")
        counts = k.let(counts & inside & (q < cut.seen), "counts")
        to = k.let(pixel * cut.x_pitch + q, "to")
        staged.append((to, there, counts, inside & q.eq(cut.seen), value))
    for to, there, counts, is_one, value in staged:
        held = k.select(is_one, ones, k.const(0, F16x4))
        held = k.select(counts, k.cast(value, Scalar.F16), held)
        maybe(k, there, partial(k.store_shared, words, to, held))


def _convolve(
    k: Builder,
    cut: BlockCut,
    functions: tuple[Activation, Activation],
    lane: Expr,
    chunk: Expr,
    arrays: tuple[SharedArray, SharedArray, SharedArray],
) -> None:
    """Make the depthwise convolution of a chunk in shared memory."""
    (sums, weights, middle), tile, (height, width) = arrays, cut.tile, cut.sides
    window = attrs.evolve(cut.window, pad_top=0, pad_left=0, out_h=tile.height, out_w=tile.width)
    taps, across = window.kernel_h * window.kernel_w, tile.width // tile.run
    runs = cut.pixels // tile.run * tile.chunk
    for item, there in each_item(k, lane, runs, cut.threads):
        slice_, place = k.let(item % tile.chunk, "slice"), k.let(item // tile.chunk, "place")
        y, x = k.let(place // across, "y"), k.let(place % across * tile.run, "x")
        base = k.let(slice_ * (taps + 1) + cut.sizes[0], "base")

        def expanded(at: Expr, slice_: Expr) -> Expr:
            value = _number(k, sums, at * (cut.middle_pitch - 1) + slice_)
            return activate(k, functions[0], value)

        def tap(at: Expr, slice_: Expr, base: Expr = base) -> Expr:
            return _number(k, weights, base + 1 + at)

        bias = k.let(_number(k, weights, base), "bias")
        totals = [k.var(bias, "acc") for _ in range(tile.run)]
        x0, y0 = k.let(x * window.stride_w, "x0"), k.let(y * window.stride_h, "y0")
        work = WindowSums(k, window, width, across, x0, slice_, expanded, tap, totals)
        work.add_all(y0, k.i32(0), height)
        # Of zeros infinite inputs would make NaN there.
        exists = k.let(chunk * tile.chunk + slice_ < cut.middle, "exists")
        at = k.let((y * tile.width + x) * cut.middle_pitch + slice_, "to")
        for p, total in enumerate(totals):
            made = k.cast(activate(k, functions[1], total), Scalar.F16)
            if cut.middle % tile.chunk:
                made = k.select(exists, made, k.const(0, F16x4))
            maybe(k, there, partial(k.store_shared, middle, at + p * cut.middle_pitch, made))


RULES = (GroupRule("CONV_2D", "inverted_residual", _match, build_block, rank=1),)
