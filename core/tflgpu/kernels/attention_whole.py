"""ATTENTION on matrix tiles where a workgroup has all keys of a head at once; f16 in shared memory.

A workgroup has a tile of queries. Its subgroups multiply all keys; each row of scores, which are in
shared memory then, has some neighbouring invocations, which make shares of them, in their place;
values take the place of the keys, and the subgroups multiply them by the shares. No sum has to be
scaled anew, as it has where keys come block by block (`tflgpu.kernels.attention_matrix`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add

from tflgpu.kernels.attention import LOWEST
from tflgpu.kernels.attention_rows import AttentionRows, AttentionTensors, QueryRow, sizes_of
from tflgpu.kernels.domain import horizontal
from tflgpu.kernels.matrix_stage import packed
from tflgpu.kernels.sharing import items, maybe
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import MatrixRole
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import SUBGROUP, TILE, Scalar, U32x4
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.attention import AttentionSizes
from tflgpu.values import frozen

#: Subgroups of a workgroup.
_SUBGROUPS = (8, 4)


@frozen
class WholeTile:
    """How the work is cut.

    Attributes:
        subgroups: Of a workgroup, a power of two.
        keys: All keys, in tiles.
        depth, width: Numbers of a key and of a value, in tiles.
    """

    subgroups: int
    keys: int
    depth: int
    width: int

    @property
    def threads(self) -> int:
        """Invocations."""
        return self.subgroups * SUBGROUP

    @property
    def splits(self) -> int:
        """Subgroups that divide the sums over tokens."""
        return self.subgroups // self.width

    @property
    def steps(self) -> int:
        """Tiles of tokens of a subgroup, in the sums."""
        return -(-self.keys // self.splits)

    @property
    def slots(self) -> int:
        """Tiles that rows of scores have room for."""
        key_tiles = -(-self.keys // self.subgroups)
        return max(key_tiles * self.subgroups, self.steps * self.splits)

    @property
    def pitches(self) -> tuple[int, int, int]:
        """Elements of shared memory from one query, key or value to the next, of scores and shares,
        and of sums: odd numbers."""
        return max(self.depth, self.width) * 2 + 1, self.slots * 4 + 1, self.width * 4 + 1

    @property
    def places(self) -> tuple[int, int, int]:
        """Where, behind keys, values and sums, queries and scores begin, and all ends: in elements
        of 16 bytes."""
        row, scores, sums = (TILE * pitch for pitch in self.pitches)
        first = max(self.keys * row, self.splits * sums)
        return first, first + row, first + row + scores


def whole_tiles(low: Lowering, sizes: AttentionSizes) -> list[WholeTile]:
    """The ways to cut a node's work that a device can have: none where heads are no whole tiles,
    keys are too many, or operands no pairs of f16 vectors."""
    pairs = all(low.lies_in_pairs(low.node.input(i)) for i in range(3))
    if low.precision is not Precision.F16 or low.attrs.tokens_last or not pairs:
        return []
    return tiles_on(low.caps, sizes)


def tiles_on(caps: DeviceCaps, sizes: AttentionSizes) -> list[WholeTile]:
    """Those that a device can have of operands that lie in pairs of f16 vectors."""
    keys, depth, width = (-(-n // TILE) for n in (sizes.keys, sizes.depth, sizes.width))
    if sizes.depth % TILE or sizes.width % TILE:
        return []
    tiles = [WholeTile(n, keys, depth, width) for n in _SUBGROUPS if n % width == 0]
    return [
        tile
        for tile in tiles
        if 16 * tile.places[2] <= caps.shared_bytes and tile.threads <= caps.most_members
    ]


def fills_once(tile: WholeTile, sizes: AttentionSizes, caps: DeviceCaps) -> bool:
    """Whether a device has all workgroups at a time: then one of them takes less than one that goes
    through the keys by blocks. Of many, fewer with more memory each would take longer."""
    groups = -(-sizes.share // TILE) * sizes.items * sizes.key_heads
    resident = tuning_of(caps).matrix.resident_bytes // (16 * tile.places[2])
    return groups <= resident * caps.compute_units


@frozen
class _Move:
    """What a workgroup moves from a tensor to shared memory: of each pair of vectors that an
    invocation has, where it goes, its row, whether there is one, and it."""

    pairs: list[tuple[Expr, Expr, Expr | None, Variable]]

    @classmethod
    def begin(
        cls,
        k: Builder,
        tile: WholeTile,
        view: ReadView,
        place: Callable[[Expr], Expr],
        rows: int,
        width: int,
    ) -> _Move:
        """Start the loads; ``place`` tells where a row lies."""
        pairs = []
        for item, inside in items(k, k.local_id(0), rows * width, tile.threads):
            row, pair = k.let(item // width, "r"), k.let(item % width, "c")
            loaded = view.load(k.let(place(row), "place"), k.let(pair * 2, "q"))
            to = k.let(row * tile.pitches[0] + pair, "to")
            pairs.append((to, row, inside, k.var(loaded, "reg")))
        return cls(pairs)

    def end(self, k: Builder, words: SharedArray, first: int, rows: Expr | None = None) -> None:
        """Store what was loaded; past the last of ``rows`` zeros."""
        for to, row, inside, reg in self.pairs:
            zero = k.const(0, U32x4)
            value = k.let(reg if rows is None else k.select(row < rows, reg, zero), "word")
            maybe(
                k,
                inside,
                lambda to=to, value=value: k.store_shared(  # type: ignore[misc]
                    words, to + first, value
                ),
            )


def _write(k: Builder, tensors: AttentionTensors, out: WriteView, tile: WholeTile) -> None:
    rows, sizes = AttentionRows(k, tensors), tensors.sizes
    lanes = tile.threads // TILE  # of a row
    pitch, score_pitch, sum_pitch = tile.pitches
    queries_at, scores_at, words_in_all = tile.places
    words = k.shared("words", U32x4, words_in_all)
    x, subgroup = k.let(k.local_id(0), "lx"), k.let(k.subgroup_id(), "subgroup")
    at, lane = k.let(x // lanes, "at"), k.let(x % lanes, "lane")
    first = k.let(k.group_id(0) * TILE, "first")
    row = QueryRow(rows, first + at)

    def query(index: Expr) -> Expr:
        return rows.query_row(*rows.query_of(k.let(k.min(first + index, sizes.share - 1), "index")))

    def key(operand: int) -> Callable[[Expr], Expr]:
        return lambda token: rows.key_row(operand, k.let(k.min(token, sizes.keys - 1), "token"))

    tokens = tile.keys * TILE
    queries = _Move.begin(k, tile, tensors.query, query, TILE, tile.depth * 2)
    keys = _Move.begin(k, tile, tensors.keys, key(1), tokens, tile.depth * 2)
    values = _Move.begin(k, tile, tensors.values, key(2), tokens, tile.width * 2)
    queries.end(k, words, queries_at)
    keys.end(k, words, 0)
    k.barrier()
    # Scores
    tiles = [subgroup + i for i in range(0, tile.keys, tile.subgroups)]
    starts = [k.let(k.min(t, tile.keys - 1) * (TILE * pitch), "key_tile") for t in tiles]
    sums = [k.matrix_fill() for _ in tiles]
    for h in range(0, tile.depth * 2, 2):
        left = k.matrix_load(words, queries_at + h, pitch, MatrixRole.A, "l")
        for made, start in zip(sums, starts, strict=True):
            right = k.matrix_load(words, start + h, pitch, MatrixRole.B, "r", transposed=True)
            k.matrix_multiply(made, left, right)
    for made, t in zip(sums, tiles, strict=True):
        k.matrix_store(words, k.let(t * 4 + scores_at, "to"), score_pitch, made)
    k.barrier()
    # Shares. Values past the last token are zeros, and so is a tile in the place of the queries,
    # which stands for those past the last: a share of 0 times anything else may be NaN.
    values.end(k, words, 0, rows.keys)
    with k.if_(x < TILE * 2):
        k.store_shared(words, x // 2 * pitch + x % 2 + queries_at, k.const(0, U32x4))
    line = k.let(at * score_pitch + scores_at, "line")
    largest, total = k.var(k.f32(LOWEST), "largest"), k.var(k.f32(0.0), "total")
    pairs = items(k, lane, tile.slots * 2, lanes)
    found = []
    for pair, _ in pairs:
        for quad in (k.let(pair * 2 + j, "quad") for j in range(2)):
            products = k.bitcast(k.load_shared(words, line + quad), Scalar.F32)
            found.append(row.scores(products, quad, LOWEST))
            k.set(largest, k.max(largest, horizontal(k, found[-1][0], k.max)))
    top = k.splat(k.let(k.subgroup_reduce("max", largest, lanes), "top"), 4)
    shares = []
    for scores, there in found:
        share = k.select(there, k.call("exp", scores - top), k.f32(0.0, 4))
        shares.append(k.let(share, "share"))
    for i, (_, inside) in enumerate(pairs):
        both = k.let(shares[2 * i] + shares[2 * i + 1], "both")
        more = horizontal(k, both, lambda a, b: a + b)
        k.add_to(total, more if inside is None else k.select(inside, more, k.f32(0.0)))
    k.barrier()
    for i, (pair, inside) in enumerate(pairs):
        word = packed(k, shares[2 * i : 2 * i + 2])
        maybe(k, inside, partial(k.store_shared, words, line + pair, word))
    k.barrier()
    # Sums
    column, split = k.let(subgroup % tile.width, "column"), k.let(subgroup // tile.width, "split")
    summed, start = k.matrix_fill(), k.let(split * tile.steps, "start")
    for i in range(tile.steps):
        t = k.let(start + i, "t")
        left = k.matrix_load(words, t * 2 + scores_at, score_pitch, MatrixRole.A, "l")
        place = k.select(t < tile.keys, t * (TILE * pitch) + column * 2, k.i32(queries_at))
        right = k.matrix_load(words, k.let(place, "value_tile"), pitch, MatrixRole.B, "r")
        k.matrix_multiply(summed, left, right)
    k.barrier()
    to = k.let(split * (TILE * sum_pitch) + column * 4, "to")
    k.matrix_store(words, to, sum_pitch, summed)
    whole = k.let(k.splat(k.subgroup_reduce("add", total, lanes), 4), "whole")
    k.barrier()
    for slice_, inside in items(k, lane, tile.width * 4, lanes):
        place = k.let(at * sum_pitch + slice_, "from")
        parts = [
            k.bitcast(k.load_shared(words, place + i * (TILE * sum_pitch)), Scalar.F32)
            for i in range(tile.splits)
        ]
        with k.if_(row.valid if inside is None else row.valid & inside):
            out.store(row.place, slice_, k.let(reduce(add, parts), "result") / whole)


def build_whole(low: Lowering, tile: WholeTile) -> None:
    """Write the kernel of a node and dispatch it; for devices with ``caps.matrix_tiles``."""
    sizes = sizes_of(low.node)
    k = low.kernel("attention_whole", (tile.threads, 1, 1))
    tensors = AttentionTensors.of(low, k, in_pairs=True)
    low.body(k, _write, tensors, low.write(k), tile)
    low.dispatch_groups(k, (-(-sizes.share // TILE), sizes.items * sizes.key_heads, 1))
