"""ATTENTION: one kernel, in which scores stay in a workgroup.

A workgroup has some queries that read the same keys: of one head, or of the heads that share it. It
goes through the keys by blocks. Each invocation makes the scores of four keys for every query; the
team agrees on the largest score so far, by which what was summed before is scaled down; the shares
go through shared memory, and then each invocation sums its four numbers of the values. So no row of
scores is ever stored as a whole, and each key and value is read once for all the queries.

All in f32. The largest score starts as the lowest number and not as minus infinity, so that a block
without keys adds nothing; a query without any key gets 0 / 0, as by the operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.attention_rows import AttentionRows, AttentionTensors, QueryRow, sizes_of
from tflgpu.kernels.domain import horizontal, power_of_two
from tflgpu.kernels.team import Member, Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.rule import BOOLS, FLOATS, KernelRule, Site, takes
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.attention import NAME, AttentionSizes
from tflgpu.values import frozen

LOWEST = float(np.finfo(np.float32).min)
_LANES = 64
_ROWS = 8  # queries of a workgroup
_AHEAD = 2  # quads whose values are on their way
_FEW_GROUPS = 64  # of which a device is not full: fewer queries each
_DEEPEST = 1024  # numbers of a value that invocations hold sums of
_F32X4 = F32.with_width(4)


@frozen
class _Shape:
    """How the work is divided.

    Attributes:
        lanes: Invocations of a workgroup, a power of two.
        rows: Queries of a workgroup.
        share: Queries, of all heads, that read the same keys.
        slots: Invocations, a power of two, among which the numbers of a value are divided; as many
            groups of them as there are sum every so many keys.
        splits: Workgroups among which the keys of some queries are divided.
        blocks: Blocks of keys of each.
    """

    lanes: int
    rows: int
    share: int
    slots: int
    splits: int
    blocks: int

    @classmethod
    def of(cls, sizes: AttentionSizes, caps: DeviceCaps) -> _Shape:
        most = min(_LANES, 1 << (caps.max_workgroup.bit_length() - 1))
        wide, quads = power_of_two(-(-sizes.width // 4)), -(-sizes.keys // 4)
        lanes = min(most, max(power_of_two(quads), wide))
        pairs, blocks = sizes.items * sizes.key_heads, -(-quads // lanes)
        splits = blocks if blocks >= tuning_of(caps).least_key_blocks else 1
        rows = min(_ROWS, power_of_two(sizes.share))
        # Of a query a workgroup has the numbers, the shares and, of each lane, what a team merges.
        room = 16 * (-(-sizes.depth // 4) + lanes) + 4 * lanes
        while rows > 1 and rows * room > caps.shared_bytes:
            rows //= 2
        while rows > 1 and pairs * -(-sizes.share // rows) * splits < _FEW_GROUPS:
            rows //= 2
        groups = pairs * -(-sizes.share // rows)
        each = -(-blocks // min(splits, -(-2 * caps.compute_units // groups)))
        return cls(lanes, rows, sizes.share, min(lanes, wide), -(-blocks // each), each)

    @property
    def groups(self) -> int:
        """Workgroups for the queries that read the same keys."""
        return -(-self.share // self.rows)


class _Kernel:
    """The kernel, being written. ``found``: where it leaves the largest score and the sum of shares
    of each query, and in ``out`` sums, where keys are divided among workgroups."""

    def __init__(
        self,
        k: Builder,
        tensors: AttentionTensors,
        out: WriteView,
        found: WriteView | None,
        shape: _Shape,
        teams: Teams,
    ) -> None:
        self.k, self.tensors, self.out, self.found = k, tensors, out, found
        self.sizes, self.shape, self.width = tensors.sizes, shape, out.slices
        self.team: Member = teams.member(k)
        self.rows_of = AttentionRows(k, tensors)

    def build(self) -> None:
        k, shape = self.k, self.shape
        first = k.let(k.group_id(0) * shape.rows, "first")
        self.rows = [_Row(self, first + r) for r in range(shape.rows)]
        self.queries = k.shared("queries", _F32X4, shape.rows * self.tensors.query.slices)
        self._stage_queries(first)
        self.rooms = [self.team.shared(F32, "largest") for _ in self.rows]
        self.shares = k.shared("shares", _F32X4, shape.rows * shape.lanes)
        self.mine = [  # the slices of a value that this invocation sums
            k.let(self.team.lane % shape.slots + i * shape.slots, "slice")
            for i in range(-(-self.width // shape.slots))
        ]
        self.part = k.let(self.team.lane // shape.slots, "part")
        for row in self.rows:
            row.start(len(self.mine))
        start = k.let(k.group_id(2) * (shape.blocks * shape.lanes), "start")
        stop = k.let(k.min(self.rows_of.quads, start + shape.blocks * shape.lanes), "stop")
        with k.loop(start, stop, shape.lanes, name="block") as block:
            quad = k.let(block + self.team.lane, "quad")
            self._score(quad)
            k.barrier()
            self._sum(block)
            k.barrier()  # before the next block's shares
        self._finish()

    def _stage_queries(self, first: Expr) -> None:
        """Put the workgroup's queries into shared memory."""
        k, query, rows = self.k, self.tensors.query, self.rows_of
        count = self.shape.rows * query.slices
        with k.loop(self.team.lane, count, self.shape.lanes, name="item", unroll=False) as item:
            index = k.let(k.min(first + item // query.slices, self.shape.share - 1), "index")
            place = k.let(rows.query_row(*rows.query_of(index)), "place")
            k.store_shared(self.queries, item, self._f32(query, place, item % query.slices))
        k.barrier()

    def _f32(self, view: ReadView, row: Expr, slice_: Expr) -> Expr:
        return self.k.let(self.k.cast(view.load(row, slice_), Scalar.F32), "x")

    def _score(self, quad: Expr) -> None:
        """Scores of four keys for each query, and what they are of all so far."""
        k, tensors, last = self.k, self.tensors, self.sizes.keys - 1
        places = [k.let(self.rows_of.key_row(1, k.min(quad * 4 + j, last)), "at") for j in range(4)]
        products = [[k.var(k.f32(0.0), "product") for _ in range(4)] for _ in self.rows]
        slices = tensors.keys.slices
        step = 2 if slices % 2 == 0 else 1

        def load(h: Expr) -> list[Expr]:
            return [self._f32(tensors.keys, place, h + i) for i in range(step) for place in places]

        # Keys are on their way while those before them are multiplied.
        following = [k.var(key, "following") for key in load(k.i32(0))]
        with k.loop(0, slices, step, name="h", unroll=False) as h:
            keys = [k.let(key, "key") for key in following]
            loaded = load(k.let(k.min(h + step, slices - step), "next"))
            for variable, key in zip(following, loaded, strict=True):
                k.set(variable, key)
            for i in range(step):
                for r, sums in enumerate(products):
                    query = k.let(k.load_shared(self.queries, h + (r * slices + i)), "query")
                    for key, total in zip(keys[i * 4 : i * 4 + 4], sums, strict=True):
                        k.add_to(total, k.dot(query, key))
        seen = [
            row.scores(k.vec(sums), quad, LOWEST)
            for row, sums in zip(self.rows, products, strict=True)
        ]
        largest = [
            k.var(k.max(row.largest, horizontal(k, scores, k.max)), "largest")
            for row, (scores, _) in zip(self.rows, seen, strict=True)
        ]
        self.team.combine(
            self.rooms,
            largest,
            lambda a, b: [k.max(x, y) for x, y in zip(a, b, strict=True)],
            everywhere=True,
        )
        for r, (row, (scores, is_seen)) in enumerate(zip(self.rows, seen, strict=True)):
            now = largest[r]
            row.shrink(k.let(k.call("exp", row.largest - now), "shrink"))
            share = k.call("exp", scores - k.splat(now, 4))
            share = k.let(k.select(is_seen, share, k.f32(0.0, 4)), "share")
            k.add_to(row.total, horizontal(k, share, lambda a, b: a + b))
            k.store_shared(self.shares, self.team.lane + r * self.shape.lanes, share)
            k.set(row.largest, now)

    def _sum(self, block: Expr) -> None:
        """Add the block's values, by their shares, to each query's sums."""
        k, parts = self.k, self.shape.lanes // self.shape.slots
        count = k.let(k.min(self.rows_of.quads - block, self.shape.lanes), "count")
        # What is read ahead past the last quad is read from that, and no term of a sum.
        ahead, last = min(_AHEAD, self.shape.slots), self.tensors.quads - 1
        with k.loop(self.part, count, parts * ahead, name="j", unroll=False) as j:
            for i, slice_ in enumerate(self.mine):
                quads = [k.let(k.min(block + j + n * parts, last), "quad") for n in range(ahead)]
                values = [self._values(quad, slice_) for quad in quads]
                for n, numbers in enumerate(values):
                    at = k.let(j + n * parts, "at")
                    with k.if_(at < count) if n else nullcontext():
                        for r, row in enumerate(self.rows):
                            share = k.load_shared(self.shares, at + r * self.shape.lanes)
                            share = k.let(share, "share")
                            for c, number in enumerate(numbers):
                                row.add(i, c, share, number)

    def _values(self, quad: Expr, slice_: Expr) -> list[Expr]:
        """Of four tokens: four numbers of each; or, where tokens come last, four of each number."""
        k, sizes, tensors = self.k, self.sizes, self.tensors
        if tensors.settings.tokens_last:
            base = k.let(self.rows_of.value_base(), "base")
            last = sizes.width - 1
            rows = [k.let(base + k.min(slice_ * 4 + c, last), "at") for c in range(4)]
            return [self._f32(tensors.values, row, quad) for row in rows]
        found = []
        safe = k.let(k.min(slice_, tensors.values.slices - 1), "safe")
        for j in range(4):
            token = k.let(quad * 4 + j, "token")
            row = k.let(self.rows_of.key_row(2, k.min(token, sizes.keys - 1)), "at")
            value = self._f32(tensors.values, row, safe)
            # There may be no such token: not a number times a share of 0 would be one.
            there = tensors.absent is None and (sizes.keys % 4 == 0 or j < sizes.keys % 4)
            kept = value if there else k.select(token < self.rows_of.keys, value, k.f32(0.0, 4))
            found.append(k.let(kept, "x"))
        return found

    def _finish(self) -> None:
        k, shape = self.k, self.shape
        self.team.combine(
            self.rooms,
            [row.total for row in self.rows],
            lambda a, b: [x + y for x, y in zip(a, b, strict=True)],
            everywhere=True,
        )
        parts = shape.lanes // shape.slots
        for r, row in enumerate(self.rows):
            for sums in row.sums if parts > 1 else ():
                at = k.let(self.team.lane + r * shape.lanes, "at")
                k.store_shared(self.shares, at, sums)
                k.barrier()
                with k.loop(1, parts, name="p") as p:
                    where = self.team.lane % shape.slots + p * shape.slots + r * shape.lanes
                    with k.if_(self.part.eq(0)):
                        k.add_to(sums, k.load_shared(self.shares, where))
                k.barrier()
            total, place = k.let(k.splat(row.total, 4), "total"), row.place
            if self.found is not None:
                place = k.let(place * shape.splits + k.group_id(2), "place")
                with k.if_(row.valid & self.team.lane.eq(0)):
                    found = k.vec([row.largest, row.total, k.f32(0.0), k.f32(0.0)])
                    self.found.store(place, 0, found)
            for i, slice_ in enumerate(self.mine):
                with k.if_(row.valid & (slice_ < self.width) & self.part.eq(0)):
                    made = row.sums[i] / total if self.found is None else k.let(row.sums[i])
                    self.out.store(place, slice_, made)


class _Row(QueryRow):
    """One query, and what it knows of the keys so far."""

    largest: Variable
    total: Variable
    sums: list[Variable]

    def __init__(self, kernel: _Kernel, index: Expr) -> None:
        super().__init__(kernel.rows_of, index)
        self._k = kernel.k

    def start(self, slices: int) -> None:
        """Nothing seen yet."""
        k = self._k
        self.largest = k.var(k.f32(LOWEST), "so_far")
        self.total = k.var(k.f32(0.0), "total")
        self.sums = [k.var(k.f32(0.0, 4), "sums") for _ in range(slices)]

    def shrink(self, factor: Expr) -> None:
        """A larger score was found: what was summed counts for less."""
        k = self._k
        k.set(self.total, self.total * factor)
        for sums in self.sums:
            k.set(sums, sums * k.splat(factor, 4))

    def add(self, i: int, c: int, share: Expr, number: Expr) -> None:
        """Add the numbers of a token; or of all four tokens to one lane."""
        k = self._k
        if not self.tensors.settings.tokens_last:
            k.add_to(self.sums[i], number * k.splat(share.lane(c), 4))
            return
        zero = k.f32(0.0)
        product = k.let(k.dot(share, number), "dot")
        k.add_to(self.sums[i], k.vec([product if lane == c else zero for lane in range(4)]))


def _write(
    k: Builder,
    tensors: AttentionTensors,
    out: WriteView,
    found: WriteView | None,
    shape: _Shape,
    teams: Teams,
) -> None:
    _Kernel(k, tensors, out, found, shape, teams).build()


def _merge(low: Lowering, temps: Sequence[Temp], splits: int) -> None:
    """Merge what workgroups found of some of the keys each."""
    k = low.kernel("attention_merge", (_LANES, 1, 1))
    sums, found = (low.read_temp(k, temp) for temp in temps)
    out = low.write(k)
    rows = temps[0].layout.outer // splits
    place = k.let(k.global_id(0), "place")
    guard(k, place < rows * sums.slices)
    row, slice_ = k.let(place // sums.slices, "row"), k.let(place % sums.slices, "slice")
    first = k.let(row * splits, "first")
    largest = k.var(k.f32(LOWEST), "largest")
    with k.loop(0, splits) as i:
        k.set(largest, k.max(largest, found.load(first + i, 0).lane(0)))
    total, made = k.var(k.f32(0.0), "total"), k.var(k.f32(0.0, 4), "made")
    with k.loop(0, splits) as i:
        part = k.let(found.load(first + i, 0), "part")
        factor = k.let(k.call("exp", part.lane(0) - largest), "factor")
        k.add_to(total, part.lane(1) * factor)
        k.add_to(made, sums.load(first + i, slice_) * k.splat(factor, 4))
    out.store(row, slice_, made / k.splat(total, 4))
    low.dispatch(k, (rows * sums.slices, 1, 1))


def _build(low: Lowering) -> None:
    sizes, made = sizes_of(low.node), low.node.outputs[0].shape
    shape = _Shape.of(sizes, low.caps)
    teams = Teams.of(low.caps, 1, shape.lanes, lanes_first=True)
    k = low.kernel("attention", teams.workgroup)
    tensors, rows = AttentionTensors.of(low, k), math.prod(made[:-1]) * shape.splits
    temps = [low.temp((rows, n), Scalar.F32) for n in (made[-1], 2) if shape.splits > 1]
    out, found = [low.write_temp(k, temp) for temp in temps] or (low.write(k), None)
    low.body(k, _write, tensors, out, found, shape, teams)
    low.dispatch_groups(k, (shape.groups, sizes.items * sizes.key_heads, shape.splits))
    if shape.splits > 1:
        _merge(low, temps, shape.splits)


_floats = takes(FLOATS, 3)


def accepts_any(node: Node, site: Site) -> str | None:
    """Why no kernel serves a node, None where this one does."""
    mask = node.optional_input(3)
    if mask is not None and mask.dtype not in FLOATS | BOOLS:
        return f"{NAME}: its mask {mask.name} is {mask.dtype.value}"
    width = node.outputs[0].shape[3]
    if width > _DEEPEST:
        return f"{NAME}: values of {width} numbers; its kernel takes {_DEEPEST}"
    sizes = sizes_of(node)
    shape = _Shape.of(sizes, site.caps)
    most = site.caps.max_groups
    if shape.groups > most[0] or sizes.items * sizes.key_heads > most[1]:
        return f"{NAME}: {sizes.items} items and {sizes.queries} queries are more than a launch has"
    return _floats(node, site)


RULES = (KernelRule(NAME, "blocks", _build, accepts_any),)
