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

import attrs
import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import BOOLS, FLOATS, takes
from tflgpu.kernels.domain import horizontal, power_of_two
from tflgpu.kernels.team import Member, Teams
from tflgpu.kernels.unary import tanh
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.ops.attention import NAME, Attention, AttentionSizes

_LOWEST = float(np.finfo(np.float32).min)
_LANES = 64
_ROWS = 8  # queries of a workgroup
_FEW_GROUPS = 64  # of which a device is not full: fewer queries each
_DEEPEST = 1024  # numbers of a value that invocations hold sums of
_F32X4 = F32.with_width(4)
_RESULT = 3


@attrs.frozen
class _Shape:
    """How the work is divided.

    Attributes:
        lanes: Invocations of a workgroup, a power of two.
        rows: Queries of a workgroup.
        share: Queries, of all heads, that read the same keys.
        slots: Invocations, a power of two, among which the numbers of a value are divided; as many
            groups of them as there are sum every so many keys.
    """

    lanes: int
    rows: int
    share: int
    slots: int

    @classmethod
    def of(cls, sizes: AttentionSizes, most: int) -> _Shape:
        most = min(_LANES, 1 << (most.bit_length() - 1))
        wide = power_of_two(-(-sizes.width // 4))
        lanes = min(most, max(power_of_two(-(-sizes.keys // 4)), wide))
        share = sizes.heads // sizes.key_heads * sizes.queries
        rows = min(_ROWS, power_of_two(share))
        while rows > 1 and sizes.items * sizes.key_heads * -(-share // rows) < _FEW_GROUPS:
            rows //= 2
        return cls(lanes, rows, share, min(lanes, wide))

    @property
    def groups(self) -> int:
        """Workgroups for the queries that read the same keys."""
        return -(-self.share // self.rows)


class _Kernel:
    """The kernel, being written."""

    def __init__(self, low: Lowering) -> None:
        self.low, self.attrs = low, low.attrs
        q, k, v = (low.node.input(i).shape for i in range(3))
        self.sizes = AttentionSizes.of(low.attrs, q, k, v)
        self.shape = _Shape.of(self.sizes, low.caps.max_workgroup)
        teams = Teams.of(low.caps, 1, self.shape.lanes, lanes_first=True)
        self.k: Builder = low.kernel("attention", teams.workgroup)
        self.team: Member = teams.member(self.k)
        self.query, self.keys, self.values = (low.read(self.k, i) for i in range(3))
        self.mask = None if low.node.optional_input(3) is None else low.read(self.k, 3)
        self.out = low.write(self.k)
        self.quads = -(-self.sizes.keys // 4)
        self.width = self.out.slices

    def build(self) -> None:
        k, shape, sizes = self.k, self.shape, self.sizes
        pair = k.let(k.group_id(1), "pair")  # an item, and a head of its keys
        self.item = k.let(pair // sizes.key_heads, "item")
        self.head = k.let(pair % sizes.key_heads, "head")
        first = k.let(k.group_id(0) * shape.rows, "first")
        self.rows = [_Row(self, first + r) for r in range(shape.rows)]
        self.rooms = [self.team.shared(F32, "largest") for _ in self.rows]
        self.shares = k.shared("shares", _F32X4, shape.rows * shape.lanes)
        self.mine = [  # the slices of a value that this invocation sums
            k.let(self.team.lane % shape.slots + i * shape.slots, "slice")
            for i in range(-(-self.width // shape.slots))
        ]
        self.part = k.let(self.team.lane // shape.slots, "part")
        for row in self.rows:
            row.start(len(self.mine))
        with k.loop(0, self.quads, shape.lanes, name="block") as block:
            quad = k.let(block + self.team.lane, "quad")
            self._score(quad)
            k.barrier()
            self._sum(block)
            k.barrier()  # before the next block's shares
        self._finish()
        self.low.dispatch_groups(k, (shape.groups, sizes.items * sizes.key_heads, 1))

    def _key_row(self, operand: int, token: Expr) -> Expr:
        """Where a key or value of a token lies."""
        sizes = self.sizes
        return self.row_of(operand, self.item, self.head, token, sizes.key_heads, sizes.keys)

    def row_of(
        self, operand: int, item: Expr, head: Expr, token: Expr, heads: int, tokens: int
    ) -> Expr:
        """The row of an operand, or of what is of the shape of queries."""
        rows = self.attrs.rows[operand] if operand < 3 else None
        first = self.attrs.heads_first
        if rows is not None:
            places = (item, head, token) if first else (item, token, head)
            found = self.k.i32(rows.first)
            for place, step in zip(places, rows.steps, strict=True):
                found = found + place * step
            return found
        if first:
            return (item * heads + head) * tokens + token
        return (item * tokens + token) * heads + head

    def _f32(self, view: ReadView, row: Expr, slice_: Expr) -> Expr:
        return self.k.let(self.k.cast(view.load(row, slice_), Scalar.F32), "x")

    def _score(self, quad: Expr) -> None:
        """Scores of four keys for each query, and what they are of all so far."""
        k, last = self.k, self.sizes.keys - 1
        places = [k.let(self._key_row(1, k.min(quad * 4 + j, last)), "at") for j in range(4)]
        products = [[k.var(k.f32(0.0), "product") for _ in range(4)] for _ in self.rows]
        with k.loop(0, self.keys.slices, 1, name="h") as h:
            keys = [self._f32(self.keys, place, h) for place in places]
            for row, sums in zip(self.rows, products, strict=True):
                query = self._f32(self.query, row.query, h)
                for key, total in zip(keys, sums, strict=True):
                    k.add_to(total, k.dot(query, key))
        seen = [row.seen(k.vec(sums), quad) for row, sums in zip(self.rows, products, strict=True)]
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
        count = k.let(k.min(self.quads - block, self.shape.lanes), "count")
        with k.loop(self.part, count, parts, name="j") as j:
            quad = k.let(block + j, "quad")
            shares = [
                k.let(k.load_shared(self.shares, j + r * self.shape.lanes), "share")
                for r in range(len(self.rows))
            ]
            for i, slice_ in enumerate(self.mine):
                for c, number in enumerate(self._values(quad, slice_)):
                    for row, share in zip(self.rows, shares, strict=True):
                        row.add(i, c, share, number)

    def _values(self, quad: Expr, slice_: Expr) -> list[Expr]:
        """Of four tokens: four numbers of each; or, where tokens come last, four of each number."""
        k, sizes = self.k, self.sizes
        if self.attrs.tokens_last:
            base = k.let((self.item * sizes.key_heads + self.head) * sizes.width, "base")
            last = sizes.width - 1
            rows = [k.let(base + k.min(slice_ * 4 + c, last), "at") for c in range(4)]
            return [self._f32(self.values, row, quad) for row in rows]
        found = []
        safe = k.let(k.min(slice_, self.values.slices - 1), "safe")
        for j in range(4):
            token = k.let(quad * 4 + j, "token")
            row = k.let(self._key_row(2, k.min(token, sizes.keys - 1)), "at")
            value = self._f32(self.values, row, safe)
            # There may be no such token: not a number times a share of 0 would be one.
            there = sizes.keys % 4 == 0 or j < sizes.keys % 4
            zero = k.f32(0.0, 4)
            found.append(value if there else k.let(k.select(token < sizes.keys, value, zero), "x"))
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
            total = k.let(k.splat(row.total, 4), "total")
            for i, slice_ in enumerate(self.mine):
                with k.if_(row.valid & (slice_ < self.width) & self.part.eq(0)):
                    self.out.store(row.place, slice_, row.sums[i] / total)


class _Row:
    """One query: where it lies, and what it knows of the keys so far."""

    largest: Variable
    total: Variable
    sums: list[Variable]

    def __init__(self, kernel: _Kernel, index: Expr) -> None:
        self.kernel = kernel
        k, sizes = kernel.k, kernel.sizes
        index = k.let(index, "row")
        self.valid = k.let(index < kernel.shape.share, "valid")
        index = k.let(k.min(index, kernel.shape.share - 1), "row")
        shared = sizes.heads // sizes.key_heads
        self.head = k.let(kernel.head * shared + index // sizes.queries, "query_head")
        self.token = k.let(index % sizes.queries, "query_token")
        where = (kernel.item, self.head, self.token, sizes.heads, sizes.queries)
        self.place = k.let(kernel.row_of(_RESULT, *where), "place")
        same = kernel.attrs.rows[0] is None
        self.query = self.place if same else k.let(kernel.row_of(0, *where), "query")
        self._mask_row = None if kernel.mask is None else self._row_of(kernel.mask)

    def start(self, slices: int) -> None:
        """Nothing seen yet."""
        k = self.kernel.k
        self.largest = k.var(k.f32(_LOWEST), "so_far")
        self.total = k.var(k.f32(0.0), "total")
        self.sums = [k.var(k.f32(0.0, 4), "sums") for _ in range(slices)]

    def _row_of(self, mask: ReadView) -> Expr:
        item, head, token = ((1,) * (4 - len(mask.shape)) + tuple(mask.shape))[:3]
        k = self.kernel.k
        row = self.kernel.item * head if item > 1 else k.i32(0)
        row = (row + self.head) * token if head > 1 else row * token
        return k.let(row + self.token if token > 1 else row, "mask_row")

    def seen(self, products: Expr, quad: Expr) -> tuple[Expr, Expr]:
        """The scores of four keys, and which of them there are for this query."""
        kernel, k = self.kernel, self.kernel.k
        settings: Attention = kernel.attrs
        scores = products * settings.scale
        if settings.cap:
            scores = tanh(k, scores * (1.0 / settings.cap)) * settings.cap
        tokens = k.let(k.vec([quad * 4 + j for j in range(4)]), "tokens")
        there = tokens < k.splat(k.i32(kernel.sizes.keys), 4)
        if kernel.mask is not None and self._mask_row is not None:
            at = k.let(k.min(quad, kernel.quads - 1), "at")
            mask = k.let(kernel.mask.load(self._mask_row, at), "mask")
            if not mask.type.scalar.is_float:
                kept = mask > k.const(0, mask.type)
                if math.isinf(settings.fill):
                    there = there & kept
                else:
                    scores = k.select(kept, scores, k.f32(settings.fill, 4))
            else:
                scores = scores + k.cast(mask, Scalar.F32)
        if settings.causal:
            there = there & (tokens <= k.splat(self.token, 4))
        there = k.let(there, "there")
        return k.let(k.select(there, scores, k.f32(_LOWEST, 4)), "scores"), there

    def shrink(self, factor: Expr) -> None:
        """A larger score was found: what was summed counts for less."""
        k = self.kernel.k
        k.set(self.total, self.total * factor)
        for sums in self.sums:
            k.set(sums, sums * k.splat(factor, 4))

    def add(self, i: int, c: int, share: Expr, number: Expr) -> None:
        """Add the numbers of a token; or of all four tokens to one lane."""
        k = self.kernel.k
        if not self.kernel.attrs.tokens_last:
            k.add_to(self.sums[i], number * k.splat(share.lane(c), 4))
            return
        zero = k.f32(0.0)
        product = k.let(k.dot(share, number), "dot")
        k.add_to(self.sums[i], k.vec([product if lane == c else zero for lane in range(4)]))


def _build(low: Lowering) -> None:
    _Kernel(low).build()


_floats = takes(FLOATS, 3)


def _accepts(node: Node, site: Site) -> str | None:
    mask = node.optional_input(3)
    if mask is not None and mask.dtype not in FLOATS | BOOLS:
        return f"{NAME}: its mask {mask.name} is {mask.dtype.value}"
    width = node.outputs[0].shape[3]
    if width > _DEEPEST:
        return f"{NAME}: values of {width} numbers; its kernel takes {_DEEPEST}"
    q, k, v = (node.input(i).shape for i in range(3))
    sizes = AttentionSizes.of(node.attrs, q, k, v)
    shape = _Shape.of(sizes, site.caps.max_workgroup)
    most = site.caps.max_groups
    if shape.groups > most[0] or sizes.items * sizes.key_heads > most[1]:
        return f"{NAME}: {sizes.items} items and {sizes.queries} queries are more than a launch has"
    return _floats(node, site)


RULES = (KernelRule(NAME, "blocks", _build, _accepts),)
