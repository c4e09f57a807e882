"""Queries, keys and values of attention before the moves that brought them into a product's form.

    x [B, T, N, H] -> TRANSPOSE -> MUL by a number -> TRANSPOSE of the last two axes -> RESHAPE
        -> BATCH_MATMUL

Each step back is an `OperandForm` of the same numbers. RESHAPEs, and others that leave elements in
their order, are passed; a factor joins the scale of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs

from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import scalar_of
from tflgpu.ops.transpose import order_of
from tflgpu.passes.attention_masks import ReshapedValue
from tflgpu.passes.base import PassContext

_SWAPPED = (0, 2, 1, 3)  # tokens and heads
_SWAPPED_KEYS = (0, 2, 3, 1)  # the same, and numbers before tokens


@attrs.frozen
class OperandForm:
    """An operand at some step: queries, keys or values.

    Attributes:
        value: What holds its numbers.
        in_rows: Whether those of a token are the last axis; else tokens are.
        whole: Whether these two are the last two axes.
        factor: What they are still multiplied by.
        passed: The nodes behind it.
    """

    value: Value
    in_rows: bool
    whole: bool = True
    factor: float = 1.0
    passed: tuple[Node, ...] = ()


class OperandReader:
    """Reads operands backwards from a product.

    Args:
        rewriter: Of the graph.
        context: The ops there are.
        is_plain: Whether a node computes floats, without an activation.
    """

    def __init__(
        self, rewriter: Rewriter, context: PassContext, is_plain: Callable[[Node], bool]
    ) -> None:
        self._rewriter, self._context, self._is_plain = rewriter, context, is_plain

    def keeps_order(self, node: Node) -> bool:
        """Whether a node gives its operand's elements another shape at most."""
        op = self._context.op(node)
        moves = None if op is None or op.movement.moves is None else op.movement.moves(node)
        if moves is None or moves.operand or not self._is_plain(node):
            return False
        source, result = node.input(0), node.outputs[0]
        return source.elements == result.elements and moves.is_identity(source.shape)

    def forms(self, first: OperandForm, *, scales: bool) -> list[OperandForm]:
        """An operand of a product, and what it was made of, step by step; with ``scales`` also
        through factors."""
        found = [first]
        while (before := self._before(found[-1], scales)) is not None:
            found.append(before)
        return found

    def _before(self, form: OperandForm, scales: bool) -> OperandForm | None:
        node = self._rewriter.producer(form.value)
        source = None if node is None or not self._is_plain(node) else node.inputs[0]
        if node is None or source is None:
            return None
        form = attrs.evolve(form, passed=(node, *form.passed))
        if self.keeps_order(node):
            whole = form.whole and source.shape[-2:] == form.value.shape[-2:]
            fits = whole or form.in_rows
            return attrs.evolve(form, value=source, whole=whole) if fits else None
        if node.op == "TRANSPOSE" and form.whole and order_of(node) == _last_two(source.shape):
            return attrs.evolve(form, value=source, in_rows=not form.in_rows)
        scaled = scaling(node) if scales else None
        if scaled is None or scaled[0].shape != form.value.shape:
            return None
        factor = scaled[1] * form.factor
        return attrs.evolve(form, value=scaled[0], factor=factor) if math.isfinite(factor) else None

    def tokens_first(
        self, forms: Sequence[OperandForm], lead: Shape, *, scales: bool
    ) -> OperandForm | None:
        """What was transposed to have heads first, as [items, tokens, heads, numbers] but for 1s
        in front; None where nothing was. ``lead``: items and heads."""
        for form in forms:
            node = self._rewriter.producer(form.value, "TRANSPOSE")
            ours = (1,) * (4 - len(form.value.shape)) + form.value.shape
            if node is None or not form.whole or ours[:-2] != lead or not self._is_plain(node):
                continue
            if _order_of_four(node) == (_SWAPPED if form.in_rows else _SWAPPED_KEYS):
                passed = (node, *form.passed)
                before = OperandForm(node.input(0), True, False, form.factor, passed)
                return self.forms(before, scales=scales)[-1]
        return None

    def in_rows(self, form: OperandForm, shape: Shape) -> ReshapedValue:
        """An operand of ``shape``, with each token's numbers last, as they were before a
        TRANSPOSE."""
        value = form.value
        if form.in_rows:
            return ReshapedValue(value, None, shape)
        order = _last_two(value.shape)
        before = self._rewriter.producer(value, "TRANSPOSE")
        first = None if before is None else order_of(before)
        if before is not None and first is not None:
            value, order = before.input(0), tuple(first[axis] for axis in order)
        same = order == tuple(range(len(order)))
        return ReshapedValue(value, None if same else order, shape)

    def not_repeated(self, operand: ReshapedValue, heads: int) -> ReshapedValue | None:
        """Keys or values before each of their heads was repeated for a group of queries' heads:
        [.., 2, 1, ..] -> [.., 2, 3, ..] -> [.., 6, ..]."""
        value, shape = operand.value, operand.shape
        merged = self._rewriter.producer(value, "RESHAPE")
        many = value if merged is None else merged.input(0)
        repeated = self._rewriter.producer(many, "TILE", "BROADCAST_TO")
        if operand.order is not None or repeated is None or not repeated.input(0).shape_known:
            return None
        few = repeated.input(0)
        if few.dtype is not value.dtype or few.quant is not None or len(many.shape) != 5:
            return None
        groups, each = many.shape[heads : heads + 2]
        if many.shape != (*shape[:heads], groups, each, *shape[heads + 1 :]):
            return None
        if few.shape != (*shape[:heads], groups, 1, *shape[heads + 1 :]):
            return None
        return ReshapedValue(few, None, (*shape[:heads], groups, *shape[heads + 1 :]))

    def back(self, value: Value, lead: Shape) -> Node | None:
        """The TRANSPOSE, all that reads a value, that brings tokens before heads again."""
        node = self._rewriter.sole_use(value)
        while node is not None and node.op != "TRANSPOSE" and self.keeps_order(node):
            same = node.outputs[0].shape[-2:] == value.shape[-2:]
            node = self._rewriter.sole_use(node.outputs[0]) if same else None
        if node is None or node.op != "TRANSPOSE" or not self._is_plain(node):
            return None
        shape = node.input(0).shape
        fits = ((1,) * (4 - len(shape)) + shape)[:-2] == lead
        return node if fits and _order_of_four(node) == _SWAPPED else None


def scaling(node: Node) -> tuple[Value, float] | None:
    """What a node multiplies by one finite number, and the number; None where it does not."""
    for at in {"MUL": (0, 1), "DIV": (0,)}.get(node.op, ()):
        number = scalar_of(node.input(1 - at))
        if number is None:
            continue
        if node.op == "DIV":
            number = 1 / number if number else math.inf
        return (node.input(at), number) if math.isfinite(number) else None
    return None


def _order_of_four(transpose: Node) -> tuple[int, ...] | None:
    """The order of a TRANSPOSE of four axes, or of fewer with 1s in front."""
    order = order_of(transpose)
    ahead = 4 - len(transpose.input(0).shape)
    if order is None or ahead < 0:
        return None
    return (*range(ahead), *(axis + ahead for axis in order))


def _last_two(shape: Shape) -> tuple[int, ...]:
    rank = len(shape)
    return (*range(rank - 2), rank - 1, rank - 2)
