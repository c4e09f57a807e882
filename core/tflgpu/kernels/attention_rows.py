"""What kernels of attention read: where rows lie, and what becomes of scores."""

from __future__ import annotations

import math

from tflgpu.ir.graph import Node
from tflgpu.kernels.unary import tanh
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import Scalar
from tflgpu.lowering.absent import AbsentCount
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView
from tflgpu.ops.attention import Attention, AttentionSizes
from tflgpu.values import evolve, frozen

_RESULT = 3


def sizes_of(node: Node) -> AttentionSizes:
    """The sizes of a node's operands."""
    return AttentionSizes.of(node.attrs, *(node.input(i).shape for i in range(3)))


@frozen
class AttentionTensors:
    """What a kernel reads, which takes no statements.

    Attributes:
        settings: The node's.
        sizes: Those of its operands.
        query, keys, values, mask: Its operands.
        absent: How many of the last keys there are not, in a buffer of one number; None where there
            are all.
    """

    settings: Attention
    sizes: AttentionSizes
    query: ReadView
    keys: ReadView
    values: ReadView
    mask: ReadView | None
    absent: KernelBuffer | None

    @classmethod
    def of(cls, low: Lowering, k: Builder, *, in_pairs: bool = False) -> AttentionTensors:
        """The operands of a node, in a kernel; the first three by two vectors at once where they
        are ``in_pairs`` (`tflgpu.lowering.view.PairView`)."""
        given = [low.node.input(i) for i in range(3)]
        query, keys, values = (
            low.read_pairs(k, each) if in_pairs else low.read(k, i) for i, each in enumerate(given)
        )
        mask = None if low.node.optional_input(3) is None else low.read(k, 3)
        if mask is not None and mask.compute.is_float:
            # As scores are: what hides a key in f32 would hide it in f16 by an infinity, and all
            # keys of a row so hidden have equal shares in f32.
            mask = evolve(mask, compute=Scalar.F32)
        sizes = sizes_of(low.node)
        absent = _absent_keys(low, k, sizes)
        return cls(low.attrs, sizes, query, keys, values, mask, absent)

    @property
    def quads(self) -> int:
        """Vectors of four keys."""
        return -(-self.sizes.keys // 4)


def _absent_keys(low: Lowering, k: Builder, sizes: AttentionSizes) -> KernelBuffer | None:
    """Where tokens of the keys may not count (scores of such are minus infinity then, as a softmax
    needs them): how many do not."""
    found: list[int] = []
    keys, values = low.node.input(1), low.node.input(2)
    for value, rows in zip((keys, values), low.attrs.rows[1:], strict=True):
        if low.absent is None:
            break
        axis = low.absent.axis_of(value)
        before = sizes.items * (sizes.key_heads if low.attrs.heads_first and rows is None else 1)
        if axis is not None and (math.prod(value.shape[:axis]), value.shape[axis]) == (
            before,
            sizes.keys,
        ):
            found.append(value.id)
    if not found:
        return None
    low.bindings[id(k)].append(AbsentCount(tuple(found)))
    return k.buffer("absent", Scalar.I32, 1, "read")


class AttentionRows:
    """Where rows lie. Workgroups along the second axis each have an item, and a head of the keys
    of it."""

    def __init__(self, k: Builder, tensors: AttentionTensors) -> None:
        self.k, self.tensors, self.sizes = k, tensors, tensors.sizes
        pair = k.let(k.group_id(1), "pair")
        self.item = k.let(pair // self.sizes.key_heads, "item")
        self.head = k.let(pair % self.sizes.key_heads, "head")
        #: How many keys there are, and vectors of four of them.
        self.keys: Expr = k.i32(self.sizes.keys)
        self.quads: Expr = k.i32(tensors.quads)
        if tensors.absent is not None:
            self.keys = k.let(self.sizes.keys - k.load(tensors.absent, 0), "present")
            self.quads = k.let((self.keys + 3) // 4, "quads")

    def key_row(self, operand: int, token: Expr) -> Expr:
        """Where a key or value of a token lies."""
        sizes = self.sizes
        return self._row_of(operand, self.head, token, sizes.key_heads, sizes.keys)

    def query_of(self, index: Expr) -> tuple[Expr, Expr]:
        """The head and the token of the query that has a number among those of the same keys."""
        queries, shared = self.sizes.queries, self.sizes.heads // self.sizes.key_heads
        head = self.k.let(self.head * shared + index // queries, "query_head")
        return head, self.k.let(index % queries, "query_token")

    def query_row(self, head: Expr, token: Expr) -> Expr:
        """Where a query lies."""
        return self._row_of(0, head, token, self.sizes.heads, self.sizes.queries)

    def result_row(self, head: Expr, token: Expr) -> Expr:
        """Where its result lies."""
        return self._row_of(_RESULT, head, token, self.sizes.heads, self.sizes.queries)

    def _row_of(self, operand: int, head: Expr, token: Expr, heads: int, tokens: int) -> Expr:
        settings, item = self.tensors.settings, self.item
        rows = settings.rows[operand] if operand < _RESULT else None
        first = settings.heads_first
        if rows is not None:
            places = (item, head, token) if first else (item, token, head)
            found = self.k.i32(rows.first)
            for place, step in zip(places, rows.steps, strict=True):
                found = found + place * step
            return found
        if first:
            return (item * heads + head) * tokens + token
        return (item * tokens + token) * heads + head

    def value_base(self) -> Expr:
        """The first row of the head's values, where their tokens come last."""
        return (self.item * self.sizes.key_heads + self.head) * self.sizes.width


class QueryRow:
    """One query: where it lies, and what its scores are.

    Attributes:
        valid: Whether there is such a query; where there is not, the others are the last one's.
        head, token: Its place.
        place: The row of its result.
    """

    def __init__(self, rows: AttentionRows, index: Expr) -> None:
        self.rows, self.tensors = rows, rows.tensors
        k, tensors = rows.k, rows.tensors
        index = k.let(index, "row")
        self.valid = k.let(index < tensors.sizes.share, "valid")
        self.head, self.token = rows.query_of(k.let(k.min(index, tensors.sizes.share - 1), "row"))
        self.place = k.let(rows.result_row(self.head, self.token), "place")
        self._mask_row = None if tensors.mask is None else self._row_of(tensors.mask)

    def _row_of(self, mask: ReadView) -> Expr:
        item, head, token = ((1,) * (4 - len(mask.shape)) + tuple(mask.shape))[:3]
        k = self.rows.k
        row = self.rows.item * head if item > 1 else k.i32(0)
        row = (row + self.head) * token if head > 1 else row * token
        return k.let(row + self.token if token > 1 else row, "mask_row")

    def scores(self, products: Expr, quad: Expr, absent: float) -> tuple[Expr, Expr]:
        """The scores of four keys, ``absent`` where there is none for this query, and which there
        are."""
        tensors, k, settings = self.tensors, self.rows.k, self.tensors.settings
        scores = products * settings.scale
        if settings.cap:
            scores = tanh(k, scores * (1.0 / settings.cap)) * settings.cap
        tokens = k.let(k.vec([quad * 4 + j for j in range(4)]), "tokens")
        there = tokens < k.splat(self.rows.keys, 4)
        if tensors.mask is not None and self._mask_row is not None:
            at = k.let(k.min(quad, tensors.quads - 1), "at")
            mask = k.let(tensors.mask.load(self._mask_row, at), "mask")
            if not mask.type.scalar.is_float:
                kept = mask > k.const(0, mask.type)
                if math.isinf(settings.fill):
                    there = there & kept
                else:
                    scores = k.select(kept, scores, k.f32(settings.fill, 4))
            else:
                scores = scores + mask
        if settings.causal:
            there = there & (tokens <= k.splat(self.token, 4))
        there = k.let(there, "there")
        return k.let(k.select(there, scores, k.f32(absent, 4)), "scores"), there
