"""Attention that converters wrote as operators becomes ATTENTION.

    BATCH_MATMUL(q, k) -> [MUL or DIV by a number] -> [ADD(mask)] -> [ADD(mask) or SELECT(mask)]
        -> SOFTMAX -> BATCH_MATMUL(v)

Keras' MultiHeadAttention, einsum and tf.matmul give that, with heads before tokens, to which
queries, keys and values were transposed. Keras 2 has BATCH_MATMUL(k, q) and a TRANSPOSE behind it;
some einsums have RESHAPEs that change nothing. Where all of them were transposed, and the result is
transposed back, ATTENTION reads what was there before; so it does where heads were repeated for
groups of queries' heads. Two masks (Swin's) are added to one. Files whose converter kept the name
have a composite instead (`tflgpu.compiler.composites`).

The compiler decides whether it becomes a node: a CPU has better kernels for the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import scalar_of
from tflgpu.ops.attention import NAME, Attention
from tflgpu.ops.axes import integers
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.attention_masks import ReshapedValue, broadcasts, joined, of_four_axes
from tflgpu.passes.context import PassContext

#: By the operators of its last product.
Key = tuple[int, ...]
_PRODUCT = "BATCH_MATMUL"
_SWAPPED = (0, 2, 1, 3)  # tokens and heads
_SWAPPED_KEYS = (0, 2, 3, 1)  # the same, and numbers before tokens
_FLOATS = (DType.F32, DType.F16)


@attrs.frozen(eq=False)
class _Found:
    """Operators that are attention.

    Attributes:
        nodes: Those that go away; the last one makes the result.
        attributes: What they compute.
        operands: Of one node.
        made: The result's shape, of four axes.
    """

    nodes: tuple[Node, ...]
    attributes: Attention
    operands: tuple[ReshapedValue, ...]
    made: Shape


@attrs.frozen
class _Scores:
    """The way from SOFTMAX back to the first product; ``turned``: that of keys and queries."""

    product: Node
    nodes: tuple[Node, ...]
    turned: bool = False
    scale: float = 1.0
    mask: ReshapedValue | None = None
    fill: float | None = None

    @property
    def q(self) -> Value:
        """The queries."""
        return self.product.input(1 if self.turned else 0)

    @property
    def k(self) -> Value:
        """The keys."""
        return self.product.input(0 if self.turned else 1)

    @property
    def q_in_rows(self) -> bool:
        """Whether a query's numbers are the last axis."""
        return bool(self.product.attrs.adj_y) if self.turned else True

    @property
    def k_in_rows(self) -> bool:
        """Whether a key's numbers are the last axis."""
        return True if self.turned else bool(self.product.attrs.adj_y)

    @property
    def shape(self) -> Shape:
        """Queries by keys."""
        *lead, rows, columns = self.product.outputs[0].shape
        return (*lead, columns, rows) if self.turned else (*lead, rows, columns)


@attrs.frozen
class _Added:
    """A mask that is added to scores.

    Attributes:
        scores: What it is added to.
        mask: It, in a form for such scores.
        nodes: The ADD, and RESHAPEs around it.
        attributes: The ADD's.
    """

    scores: Value
    mask: ReshapedValue
    nodes: tuple[Node, ...]
    attributes: object


def run(
    graph: Graph,
    context: PassContext,
    takes: Callable[[Node], bool],
    kept: Collection[Key] = (),
) -> frozenset[Key]:
    """Put ATTENTION in the place of what is attention. Gives where.

    Args:
        graph: It is changed.
        context: The ops there are.
        takes: Whether a node can be on the device.
        kept: Those that are to stay operators.
    """
    rewriter, done = Rewriter(graph), set[Key]()
    for last in rewriter.nodes(_PRODUCT):
        key = tuple(last.origins)
        found = None if key in kept else _Matching(rewriter, context).match(last)
        if found is not None and takes(_alone(found)):
            _put(rewriter, found)
            done.add(key)
    if done:
        graph.prune()
    return frozenset(done)


def among(nodes: Sequence[Node], keys: Collection[Key]) -> frozenset[Key]:
    """Those of which one node stands among these."""
    there = [set(node.origins) for node in nodes if node.op == NAME]
    return frozenset(key for key in keys if any(origins.issuperset(key) for origins in there))


def _alone(found: _Found) -> Node:
    """The node, in no graph."""
    graph = Graph(NAME)
    inputs = [graph.add_value(o.whole, o.value.dtype) for o in found.operands]
    made = graph.add_value(found.made, found.nodes[-1].outputs[0].dtype)
    return Node(NAME, found.attributes, list(inputs), [made], 1, merged_origins(*found.nodes))


def _put(rewriter: Rewriter, found: _Found) -> None:
    origins, last = merged_origins(*found.nodes), found.nodes[-1]
    (result,) = last.outputs

    def inserted(op: str, attributes: object, inputs: Sequence[Value], shape: Shape) -> Value:
        made = rewriter.value(shape, inputs[0].dtype, inputs[0].name + "/attention")
        rewriter.insert(op, attributes, inputs, [made], before=last, origins=origins)
        return made

    def formed(operand: ReshapedValue) -> Value:
        value = operand.value
        if operand.order is not None:
            order = rewriter.const(np.array(operand.order, np.int32))
            shape = tuple(value.shape[axis] for axis in operand.order)
            value = inserted("TRANSPOSE", NoAttrs(), [value, order], shape)
        if value.shape != operand.shape:
            value = inserted("RESHAPE", ReshapeAttrs(operand.shape), [value], operand.shape)
        if operand.plus is not None:
            value = inserted("ADD", operand.adding, [value, formed(operand.plus)], operand.whole)
        return value

    operands = [formed(operand) for operand in found.operands]
    if result.shape == found.made:
        rewriter.replace(found.nodes, NAME, found.attributes, operands)
    else:
        whole = inserted(NAME, found.attributes, operands, found.made)
        rewriter.replace(found.nodes, "RESHAPE", ReshapeAttrs(result.shape), [whole])
    rewriter.count()


class _Matching:
    def __init__(self, rewriter: Rewriter, context: PassContext) -> None:
        self._rewriter, self._context = rewriter, context

    def match(self, last: Node) -> _Found | None:
        """Attention that ends with a product."""
        shares, v = last.input(0), last.input(1)
        softmax = self._inner(shares, "SOFTMAX")
        if softmax is None or not self._is_plain(last) or last.attrs.adj_x:
            return None
        if softmax.attrs.beta != 1:
            return None
        for scores in self._scores(softmax.input(0)):
            q, k = scores.q, scores.k
            lead = q.shape[:-2]
            if scores.product.attrs.adj_x or k.shape[:-2] != lead or v.shape[:-2] != lead:
                continue
            if 0 in (*q.shape, *k.shape, *v.shape):
                continue
            nodes = (*scores.nodes, softmax, last)
            found = self._tokens_first(scores, nodes) or self._heads_first(scores, nodes)
            if found is not None:
                return found
        return None

    # Back from the softmax

    def _scores(self, value: Value) -> Iterator[_Scores]:
        """Every way to read a SOFTMAX's operand as scores."""
        yield from self._scaled(value, (), value.shape)
        for one in self._added(value):
            for found in self._scaled(one.scores, one.nodes, value.shape):
                yield attrs.evolve(found, mask=one.mask)
            for two in self._added(one.scores):
                both = attrs.evolve(one.mask, plus=two.mask, adding=one.attributes)
                for found in self._scaled(two.scores, (*two.nodes, *one.nodes), value.shape):
                    yield attrs.evolve(found, mask=both)
        node = self._inner(value, "SELECT", "SELECT_V2")
        if node is None:
            return
        mask_value, fill = node.input(0), scalar_of(node.input(2))
        if fill is None or math.isnan(fill) or fill == math.inf:
            return
        fits = mask_value.dtype is DType.BOOL and broadcasts(mask_value.shape, value.shape)
        if node.op == "SELECT" and mask_value.shape != value.shape:
            return  # it has rules of its own for vectors
        operand = ReshapedValue(mask_value, None, mask_value.shape)
        for found in self._scaled(node.input(1), (node,), value.shape) if fits else ():
            yield attrs.evolve(found, mask=operand, fill=fill)

    def _added(self, value: Value) -> Iterator[_Added]:
        """Scores, and a mask that is added to them, perhaps in a form of one axis more."""
        back = self._rewriter.producer(value, "RESHAPE")
        if back is not None and self._rewriter.sole_use(value) is not None:
            inner = self._inner(back.input(0), "ADD")
        else:
            back, inner = None, self._inner(value, "ADD")
        for scores, mask in ((0, 1), (1, 0)) if inner is not None else ():
            assert inner is not None
            before, given = inner.input(scores), inner.input(mask)
            shape, made = given.shape, inner.outputs[0].shape
            if given.dtype is not value.dtype or not broadcasts(shape, made):
                continue
            if back is None:
                yield _Added(before, ReshapedValue(given, None, shape), (inner,), inner.attrs)
                continue
            apart = self._rewriter.producer(before, "RESHAPE")
            form = joined(shape, made, value.shape)
            if apart is None or before.shape != made or form is None:
                continue
            source = apart.input(0)
            if self._rewriter.sole_use(before) is not None and source.shape == value.shape:
                operand = ReshapedValue(given, None, form)
                yield _Added(source, operand, (apart, inner, back), inner.attrs)

    def _scaled(self, value: Value, after: tuple[Node, ...], shape: Shape) -> Iterator[_Scores]:
        """A product, times a number perhaps, of the shape of what follows."""
        if value.shape != shape:
            return
        found = self._product(value, after)
        if found is not None:
            yield found
            return
        node = self._inner(value, "MUL", "DIV")
        if node is None:
            return
        for at in (0, 1) if node.op == "MUL" else (0,):
            number = scalar_of(node.input(1 - at))
            found = self._product(node.input(at), (node, *after))
            if number is None or found is None or node.input(at).shape != value.shape:
                continue
            if node.op == "DIV":
                number = 1 / number if number else math.inf
            if math.isfinite(number):
                yield attrs.evolve(found, scale=number)
                return

    def _product(self, value: Value, after: tuple[Node, ...]) -> _Scores | None:
        """A product, or one with its last two axes exchanged."""
        node = self._inner(value, _PRODUCT, "TRANSPOSE")
        if node is None or node.op == _PRODUCT:
            return None if node is None else _Scores(node, (node, *after))
        product, rank = self._inner(node.input(0), _PRODUCT), len(value.shape)
        if product is None or _order(node) != (*range(rank - 2), rank - 1, rank - 2):
            return None
        return _Scores(product, (product, node, *after), turned=True)

    def _inner(self, value: Value, *ops: str) -> Node | None:
        """The node that makes a value which one other node needs, once."""
        while self._rewriter.sole_use(value) is not None:
            node = self._rewriter.producer(value, *ops)
            if node is not None:
                return node if self._is_plain(node) else None
            same = self._rewriter.producer(value, "RESHAPE")
            if same is None or not _changes_nothing(same):
                return None
            value = same.input(0)
        return None

    def _is_plain(self, node: Node) -> bool:
        """Whether all is floats, and no activation follows."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        if node.op == "TRANSPOSE":
            values = [node.input(0), node.outputs[0]]
        floats = all(v.dtype in _FLOATS or v.dtype is DType.BOOL for v in values)
        plain = floats and all(v.quant is None and v.shape_known for v in values)
        return (
            plain
            and len({v.dtype for v in values} - {DType.BOOL}) == 1
            and (self._context.is_linear(node))
        )

    # Operands

    def _tokens_first(self, scores: _Scores, nodes: tuple[Node, ...]) -> _Found | None:
        """Where keys and values were transposed to heads first, and the rest was too or is of one
        token, which lies the same both ways."""
        last = nodes[-1]
        q, k, v = scores.q, scores.k, last.input(1)
        if len(q.shape) != 4 or last.attrs.adj_y:
            return None
        keys = self._before(k, _SWAPPED if scores.k_in_rows else _SWAPPED_KEYS)
        values = self._before(v, _SWAPPED)
        if keys is None or values is None:
            return None
        items, heads, queries, _ = scores.shape
        depth = q.shape[-1 if scores.q_in_rows else -2]
        given = self._before(q, _SWAPPED if scores.q_in_rows else _SWAPPED_KEYS)
        back = self._back(last.outputs[0])
        if back is not None and _order(back) == _SWAPPED:
            nodes = (*nodes, back)
        elif queries > 1:
            return None
        if given is None and queries > 1:
            return None
        return self._found(
            scores,
            nodes,
            False,
            False,
            ReshapedValue(q if given is None else given, None, (items, queries, heads, depth)),
            ReshapedValue(keys, None, keys.shape),
            ReshapedValue(values, None, values.shape),
            (items, queries, heads, v.shape[3]),
        )

    def _heads_first(self, scores: _Scores, nodes: tuple[Node, ...]) -> _Found | None:
        last = nodes[-1]
        v = last.input(1)
        lead, (queries, tokens) = _two(scores.q.shape[:-2]), scores.shape[-2:]
        depth = scores.q.shape[-1 if scores.q_in_rows else -2]
        if depth != scores.k.shape[-1 if scores.k_in_rows else -2]:
            return None
        width = v.shape[-2 if last.attrs.adj_y else -1]
        return self._found(
            scores,
            nodes,
            True,
            last.attrs.adj_y,
            self._in_rows(scores.q, scores.q_in_rows, (*lead, queries, depth)),
            self._in_rows(scores.k, scores.k_in_rows, (*lead, tokens, depth)),
            ReshapedValue(v, None, (*lead, *v.shape[-2:])),
            (*lead, queries, width),
        )

    def _in_rows(self, value: Value, already: bool, shape: Shape) -> ReshapedValue:
        """Queries or keys with each one's numbers last, as they were before a TRANSPOSE."""
        if already:
            return ReshapedValue(value, None, shape)
        rank = len(value.shape)
        order: tuple[int, ...] = (*range(rank - 2), rank - 1, rank - 2)
        before = self._rewriter.producer(value, "TRANSPOSE")
        first = None if before is None else _order(before)
        if before is not None and first is not None:
            value, order = before.input(0), tuple(first[axis] for axis in order)
        return ReshapedValue(value, None if order == tuple(range(rank)) else order, shape)

    def _back(self, value: Value) -> Node | None:
        """The TRANSPOSE that is all that reads a value."""
        node = self._rewriter.sole_use(value)
        while node is not None and node.op == "RESHAPE" and _changes_nothing(node):
            node = self._rewriter.sole_use(node.outputs[0])
        return node if node is not None and node.op == "TRANSPOSE" else None

    def _found(
        self, scores: _Scores, nodes: tuple[Node, ...], heads_first: bool, tokens_last: bool,
        q: ReshapedValue, k: ReshapedValue, v: ReshapedValue, made: Shape,
    ) -> _Found | None:  # fmt: skip
        heads = 1 if heads_first else 2
        few_k, few_v = (self._not_repeated(operand, heads) for operand in (k, v))
        if few_k and few_v and few_k.shape[heads] == few_v.shape[heads]:
            k, v = few_k, few_v
        operands = [q, k, v]
        if scores.mask is not None:
            mask = of_four_axes(scores.mask, scores.shape)
            if mask is None:
                return None
            operands.append(mask)
        attributes = Attention(scores.scale, 0.0, heads_first, tokens_last)
        if scores.fill is not None:
            attributes = attrs.evolve(attributes, fill=scores.fill)
        return _Found(nodes, attributes, tuple(operands), made)

    def _not_repeated(self, operand: ReshapedValue, heads: int) -> ReshapedValue | None:
        """Keys or values before each of their heads was repeated for a group of queries' heads:
        [.., 2, 1, ..] -> [.., 2, 3, ..] -> [.., 6, ..]."""
        value, shape = operand.value, operand.shape
        merged = self._rewriter.producer(value, "RESHAPE")
        if operand.order is not None or value.shape != shape or merged is None:
            return None
        repeated = self._rewriter.producer(merged.input(0), "TILE", "BROADCAST_TO")
        if repeated is None or not repeated.input(0).shape_known:
            return None
        few, many = repeated.input(0), repeated.outputs[0].shape
        if few.dtype is not value.dtype or few.quant is not None or len(many) != 5:
            return None
        groups, each = many[heads : heads + 2]
        if many != (*shape[:heads], groups, each, *shape[heads + 1 :]):
            return None
        if few.shape != (*shape[:heads], groups, 1, *shape[heads + 1 :]):
            return None
        return ReshapedValue(few, None, (*shape[:heads], groups, *shape[heads + 1 :]))

    def _before(self, value: Value, order: tuple[int, ...]) -> Value | None:
        """The operand of the TRANSPOSE in this order that makes ``value``; None where none does."""
        node = self._rewriter.producer(value, "TRANSPOSE")
        return node.input(0) if node is not None and _order(node) == order else None


def _changes_nothing(reshape: Node) -> bool:
    source, result = reshape.input(0), reshape.outputs[0]
    known = source.shape_known and result.shape_known
    return known and source.shape == result.shape and source.quant is None and result.quant is None


def _order(transpose: Node) -> tuple[int, ...] | None:
    data = transpose.input(1).data
    if data is None or transpose.outputs[0].quant is not None:
        return None
    rank = len(transpose.input(0).shape)
    return tuple(axis % rank for axis in integers(data))


def _two(lead: Shape) -> Shape:
    """The axes before the last two, as items and heads."""
    return (math.prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (math.prod(lead), 1)
