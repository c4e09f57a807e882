"""ATTENTION on matrix tiles: f16 operands, f32 sums, scores and shares.

A workgroup has some tiles of queries that read the same keys, and goes through the keys by blocks.
Its subgroups multiply a block's keys; each row of scores, which are in shared memory then, has some
neighbouring invocations, which agree on the largest score so far and make shares of the scores;
the subgroups multiply the block's values by them. What was summed before, which invocations hold as
they held the scores, is scaled down where a larger score was found. While a block is multiplied,
the loads of what follows are in flight.

Precisions are those of `tflgpu.kernels.matrix_gemm`: in F32_F16 an f32 operand is two f16 values,
and shares always are. How scores begin and end is as in `tflgpu.kernels.attention`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernels.attention import LOWEST, accepts_any
from tflgpu.kernels.attention_rows import AttentionRows, AttentionTensors, QueryRow, sizes_of
from tflgpu.kernels.attention_tiles import (
    AttentionTile,
    Parts,
    attention_tiles,
    choose_attention_tile,
)
from tflgpu.kernels.attention_whole import WholeTile, build_whole, fills_once, whole_tiles
from tflgpu.kernels.domain import horizontal
from tflgpu.kernels.matrix_stage import LOW_SCALE, halves
from tflgpu.kernels.sharing import items, maybe
from tflgpu.language.builder import Builder
from tflgpu.language.matrix import Matrix, MatrixRole
from tflgpu.language.tree import Expr, Operand, SharedArray
from tflgpu.language.types import SUBGROUP, TILE, F16x4, F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.attention import NAME

_DEEPEST = 256  # numbers of a key or a value


class _Kernel:
    """The kernel, being written."""

    def __init__(
        self,
        k: Builder,
        tensors: AttentionTensors,
        out: WriteView,
        tile: AttentionTile,
        parts: Parts,
    ) -> None:
        self.k, self.tensors, self.out, self.tile = k, tensors, out, tile
        self.rows = AttentionRows(k, tensors)
        self.place = k.let(k.local_id(0), "lx")
        subgroup = k.let(k.subgroup_id(), "subgroup")
        self.row_tile = k.let(subgroup % tile.rows, "row_tile")
        self.member = k.let(subgroup // tile.rows, "member")
        self.first = k.let(k.group_id(0) * (tile.rows * TILE), "first")
        self.row = QueryRow(self.rows, self.first + self.place // tile.lanes)
        self.lane = k.let(self.place % tile.lanes, "lane")
        self.at = k.let(self.place // tile.lanes, "at")
        rows = tile.rows * TILE
        self.query = _halves(k, "query", parts.query, rows * tile.key_pitch)
        staged = _halves(k, "staged", max(parts.keys, parts.values), tile.staged)
        self.keys, self.values = staged[: parts.keys], staged[: parts.values]
        self.shares = _halves(k, "shares", parts.shares, rows * tile.share_pitch)
        self.results = k.shared("results", F32x4, tile.results)
        width = self.out.slices
        self.mine = items(k, self.lane, width, tile.lanes)

    def build(self) -> None:
        """Write it."""
        k, tile, tensors = self.k, self.tile, self.tensors
        block_keys = tile.keys * TILE
        blocks: Operand = -(-tensors.sizes.keys // block_keys)
        is_one = blocks == 1
        if tensors.absent is not None:
            blocks = k.let((self.rows.keys + (block_keys - 1)) // block_keys, "blocks")
        self.largest = k.var(k.f32(LOWEST), "so_far")
        self.total = k.var(k.f32(0.0), "total")
        self.sums = [k.var(k.f32(0.0, 4), "sums") for _ in self.mine]
        query = _Stage(self, tensors.query, tile.rows * TILE, tile.depth * 4)
        query.fetch(self._query)
        keys = _Stage(self, tensors.keys, tile.keys * TILE, tile.depth * 4)
        keys.fetch(self._key(k.i32(0)))
        query.commit(self.query, tile.key_pitch)
        if tile.turned:
            values = _Stage(self, tensors.values, tile.width * TILE, tile.keys * 4)
        else:
            values = _Stage(self, tensors.values, tile.keys * TILE, tile.width * 4)
        values.fetch(self._value(k.i32(0)))
        with k.loop(0, blocks, name="block") as block:
            first = k.let(block * block_keys, "first_key")
            keys.commit(self.keys, tile.key_pitch)
            k.barrier()
            self._multiply_keys()
            k.barrier()
            values.commit(self.values, tile.value_pitch)
            if not is_one:
                with k.if_(block + 1 < blocks):
                    following = k.let(first + block_keys, "following")
                    keys.fetch(self._key(following))
                    values.fetch(self._value(following))
            shrink = self._share(first)
            k.barrier()
            self._multiply_values()
            k.barrier()
            for (slice_, _), sums in zip(self.mine, self.sums, strict=True):
                k.set(sums, sums * k.splat(shrink, 4) + self._sum(slice_))
        total = k.let(k.splat(k.subgroup_reduce("add", self.total, tile.lanes), 4), "total")
        for (slice_, inside), sums in zip(self.mine, self.sums, strict=True):
            valid = self.row.valid if inside is None else self.row.valid & inside
            with k.if_(valid):
                self.out.store(self.row.place, slice_, sums / total)

    # What is staged

    def _query(self, view: ReadView, row: Expr, slice_: Expr) -> Expr:
        k, rows = self.k, self.rows
        index = k.let(k.min(self.first + row, self.tensors.sizes.share - 1), "index")
        place = rows.query_row(*rows.query_of(index))
        return self._padded(view, k.let(place, "place"), slice_)

    def _key(self, first: Expr) -> _Load:
        k, last = self.k, self.tensors.sizes.keys - 1

        def load(view: ReadView, row: Expr, slice_: Expr) -> Expr:
            place = self.rows.key_row(1, k.let(k.min(first + row, last), "token"))
            return self._padded(view, k.let(place, "place"), slice_)

        return load

    def _padded(self, view: ReadView, place: Expr, slice_: Expr) -> Expr:
        """Numbers past the last are zeros."""
        k, slices = self.k, view.slices
        if slices % 4 == 0:
            return view.load(place, slice_)
        value = view.load(place, k.let(k.min(slice_, slices - 1), "safe"))
        return k.select(slice_ < slices, value, k.const(0, value.type))

    def _value(self, first: Expr) -> _Load:
        """Past the last token there are zeros: nothing else times a share of 0 is sure to be
        one."""
        k, sizes = self.k, self.tensors.sizes

        def load(view: ReadView, row: Expr, slice_: Expr) -> Expr:
            if self.tile.turned:
                row = k.let(self.rows.value_base() + k.min(row, sizes.width - 1), "place")
                slice_ = k.let(first // 4 + slice_, "quad")
                value = view.load(row, k.let(k.min(slice_, view.slices - 1), "safe"))
                return k.select(slice_ < view.slices, value, k.const(0, value.type))
            token = k.let(first + row, "token")
            place = k.let(self.rows.key_row(2, k.min(token, sizes.keys - 1)), "place")
            value = view.load(place, k.let(k.min(slice_, view.slices - 1), "safe"))
            return k.select(token < self.rows.keys, value, k.const(0, value.type))

        return load

    # What is made

    def _multiply_keys(self) -> None:
        k, tile = self.k, self.tile
        count = tile.key_tiles
        sums = _Sums(k, count, len(self.query) + len(self.keys) > 2)
        rows = k.let(self.row_tile * (TILE * tile.key_pitch), "rows")
        tiles = [self.member * count + i for i in range(count)]
        starts = [
            k.let(k.min(t, tile.keys - 1) * (TILE * tile.key_pitch), "key_tile") for t in tiles
        ]
        for h in range(tile.depth):
            left = [
                k.matrix_load(array, rows + h * 4, tile.key_pitch, MatrixRole.A, "l")
                for array in self.query
            ]
            for i, start in enumerate(starts):
                sums.multiply(
                    i,
                    left,
                    [
                        k.matrix_load(
                            array, start + h * 4, tile.key_pitch, MatrixRole.B, "r", transposed=True
                        )
                        for array in self.keys
                    ],
                )
        at = self.row_tile * (TILE * tile.score_pitch) + self.member * (count * 4)
        sums.store(self.results, k.let(at, "to"), tile.score_pitch)

    def _share(self, first: Expr) -> Expr:
        """Shares of the block's keys; what the sums so far count for."""
        k, tile = self.k, self.tile
        found = []
        largest = k.var(self.largest, "largest")
        for quad, inside in items(k, self.lane, tile.keys * 4, tile.lanes):
            at = k.let(self.at * tile.score_pitch + quad, "from")
            scores, there = self.row.scores(
                k.load_shared(self.results, at), k.let(first // 4 + quad, "quad"), LOWEST
            )
            found.append((quad, inside, scores, there))
            k.set(largest, k.max(largest, horizontal(k, scores, k.max)))
        now = k.let(k.subgroup_reduce("max", largest, tile.lanes), "now")
        shrink = k.let(k.call("exp", self.largest - now), "shrink")
        k.set(self.total, self.total * shrink)
        k.set(self.largest, now)
        for quad, inside, scores, there in found:
            share = k.call("exp", scores - k.splat(now, 4))
            share = k.let(k.select(there, share, k.f32(0.0, 4)), "share")
            at = k.let(self.at * tile.share_pitch + quad, "to")

            def put(at: Expr = at, share: Expr = share) -> None:
                k.add_to(self.total, horizontal(k, share, lambda a, b: a + b))
                _put(k, self.shares, at, share)

            maybe(k, inside, put)
        return shrink

    def _multiply_values(self) -> None:
        k, tile = self.k, self.tile
        count, steps = tile.column_tiles, tile.keys // tile.splits
        sums = _Sums(k, count, len(self.shares) + len(self.values) > 2)
        column = k.let(self.member % tile.columns, "column")
        split = k.let(self.member // tile.columns, "split")
        rows = self.row_tile * (TILE * tile.share_pitch) + split * (steps * 4)
        rows = k.let(rows, "rows")
        along, across = TILE * tile.value_pitch, 4
        if tile.turned:
            along, across = across, along
        base = split * (steps * along)
        starts = [
            k.let(base + k.min(column * count + i, tile.width - 1) * across, "value_tile")
            for i in range(count)
        ]
        for step in range(steps):
            left = [
                k.matrix_load(array, rows + step * 4, tile.share_pitch, MatrixRole.A, "l")
                for array in self.shares
            ]
            for i, start in enumerate(starts):
                sums.multiply(
                    i,
                    left,
                    [
                        k.matrix_load(
                            array,
                            start + step * along,
                            tile.value_pitch,
                            MatrixRole.B,
                            "r",
                            transposed=tile.turned,
                        )
                        for array in self.values
                    ],
                )
        row = split * (tile.rows * TILE) + self.row_tile * TILE
        at = k.let(row * tile.sum_pitch + column * (count * 4), "to")
        sums.store(self.results, at, tile.sum_pitch)

    def _sum(self, slice_: Expr) -> Expr:
        k, tile = self.k, self.tile
        at = k.let(self.at * tile.sum_pitch + slice_, "from")
        total = k.load_shared(self.results, at)
        for split in range(1, tile.splits):
            offset = split * (tile.rows * TILE * tile.sum_pitch)
            total = total + k.load_shared(self.results, at + offset)
        return total


#: A view, a row and a slice of what is staged -> the vector there.
_Load = Callable[[ReadView, Expr, Expr], Expr]


class _Stage:
    """What a workgroup moves: global memory -> registers (`fetch`) -> shared memory (`commit`)."""

    def __init__(self, kernel: _Kernel, view: ReadView, rows: int, slices: int) -> None:
        self._k, self._view = kernel.k, view
        k, threads = kernel.k, kernel.tile.threads
        #: Of each vector its row and slice, and a condition where not all invocations have one.
        self._places: list[tuple[Expr, Expr, Expr | None]] = []
        if threads % slices == 0:
            first, slice_ = k.let(kernel.place // slices, "r"), k.let(kernel.place % slices, "c")
            step = threads // slices
            for start in range(0, rows, step):
                row = k.let(first + start, "r")
                inside = None if start + step <= rows else k.let(row < rows, "inside")
                self._places.append((row, slice_, inside))
        else:
            for item, inside in items(k, kernel.place, rows * slices, threads):
                row = k.let(item // slices, "r")
                self._places.append((row, k.let(item % slices, "c"), inside))
        zero = k.const(0, view.vector_type)
        self._regs = [k.var(zero, "reg") for _ in self._places]

    def fetch(self, load: _Load) -> None:
        """Start the loads."""
        for (row, slice_, _), reg in zip(self._places, self._regs, strict=True):
            self._k.set(reg, load(self._view, row, slice_))

    def commit(self, arrays: list[SharedArray], pitch: int) -> None:
        """Put what was fetched into shared memory."""
        k = self._k
        for (row, slice_, inside), reg in zip(self._places, self._regs, strict=True):
            at = k.let(row * pitch + slice_, "at")
            maybe(k, inside, lambda at=at, reg=reg: _put(k, arrays, at, reg))  # type: ignore[misc]


class _Sums:
    """Accumulators, twice where there are low parts."""

    def __init__(self, k: Builder, count: int, has_low: bool) -> None:
        self._k = k
        self._high = [k.matrix_fill() for _ in range(count)]
        self._low = [k.matrix_fill() for _ in range(count)] if has_low else None

    def multiply(self, i: int, left: list[Matrix], right: list[Matrix]) -> None:
        self._k.matrix_multiply(self._high[i], left[0], right[0])
        if self._low is not None:
            for low in left[1:]:
                self._k.matrix_multiply(self._low[i], low, right[0])
            for low in right[1:]:
                self._k.matrix_multiply(self._low[i], left[0], low)

    def store(self, array: SharedArray, at: Expr, pitch: int) -> None:
        for i, high in enumerate(self._high):
            if self._low is not None:
                self._k.matrix_add(high, self._low[i], 1 / LOW_SCALE)
            self._k.matrix_store(array, at + i * 4, pitch, high)


def _halves(k: Builder, name: str, parts: int, count: int) -> list[SharedArray]:
    return [k.shared(name, F16x4, count) for _ in range(parts)]


def _put(k: Builder, arrays: list[SharedArray], at: Expr, value: Expr | Variable) -> None:
    """Store a vector, in as many parts as there are arrays."""
    parts = (k.cast(value, Scalar.F16),) if len(arrays) == 1 else halves(k, value)
    for array, part in zip(arrays, parts, strict=True):
        k.store_shared(array, at, part)


def _write(
    k: Builder, tensors: AttentionTensors, out: WriteView, tile: AttentionTile, parts: Parts
) -> None:
    _Kernel(k, tensors, out, tile, parts).build()


def _build(low: Lowering) -> None:
    sizes = sizes_of(low.node)
    stored = [low.layout(low.node.input(i)).storage for i in range(3)]
    parts = Parts.of(low.precision, stored)
    # Where positions may not count, by half of them, as `tflgpu.kernels.products` has it.
    asked = sizes if low.absent is None else attrs.evolve(sizes, queries=sizes.queries // 2 + 1)
    best = choose_attention_tile(asked, parts, low.caps, turned=low.attrs.tokens_last)
    assert best is not None
    blocks = attention_tiles(best, sizes, parts, low.caps)
    whole = whole_tiles(low, sizes)
    ways: list[AttentionTile | WholeTile] = [*blocks, *whole]
    if whole and fills_once(whole[0], sizes, low.caps):
        ways = [*whole, *blocks]
    way = low.choose("attention", (), ways, ways.index)
    if isinstance(way, WholeTile):
        build_whole(low, way)
    else:
        build_attention(low, way, parts)


def build_attention(low: Lowering, tile: AttentionTile, parts: Parts) -> None:
    """Write the kernel of a node and dispatch it; for devices with ``caps.matrix_tiles``."""
    sizes = sizes_of(low.node)
    k = low.kernel("attention_matrix", (tile.threads, 1, 1))
    tensors = AttentionTensors.of(low, k)
    low.body(k, _write, tensors, low.write(k), tile, parts)
    groups = -(-tensors.sizes.share // (tile.rows * TILE))
    low.dispatch_groups(k, (groups, sizes.items * sizes.key_heads, 1))


def _accepts(node: Node, site: Site) -> str | None:
    refused, caps, sizes = accepts_any(node, site), site.caps, sizes_of(node)
    if refused is not None:
        return refused
    if not caps.matrix_tiles or caps.subgroup_shuffle < SUBGROUP:
        return "the device has no matrix tiles"
    if site.precision is Precision.F32:
        return "precision F32 promises products of f32"
    if site.precision is Precision.F32_F16 and not tuning_of(caps).splits_products:
        return "a product of f32 would take several on the device's matrix tiles"
    if sizes.share < TILE:
        return f"{sizes.share} queries read the same keys, fewer than a tile has"
    if max(sizes.depth, sizes.width) > _DEEPEST:
        return f"it has {sizes.depth} and {sizes.width} numbers a head, more than {_DEEPEST}"
    parts = Parts.of(site.precision, [Scalar.F32] * 3)
    if choose_attention_tile(sizes, parts, caps, turned=node.attrs.tokens_last) is None:
        return "its tiles are more than a workgroup of the device holds"
    return None


RULES = (KernelRule(NAME, "matrix", _build, _accepts, rank=10),)
