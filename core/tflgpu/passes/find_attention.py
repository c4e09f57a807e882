"""Attention that converters wrote as operators becomes ATTENTION.

    BATCH_MATMUL(q, k) -> [MUL or DIV by a number] -> [ADD(mask) or SELECT(mask)] -> SOFTMAX -> BATCH_MATMUL(v)

Keras' MultiHeadAttention, einsum and tf.matmul give that, with heads before tokens, to which queries, keys and
values were transposed. Where all of them were, and the result is transposed back, ATTENTION reads what was
there before; operands of another number of axes are reshaped to four. Files whose converter kept the
name have a composite instead (`tflgpu.compiler.composites`).

Whether a node becomes of it is up to who compiles: on the CPU the operators have better kernels.
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
from tflgpu.passes.context import PassContext

#: By the operators of its last product.
Key = tuple[int, ...]
_PRODUCT = "BATCH_MATMUL"
_SWAPPED = (0, 2, 1, 3)  # tokens and heads
_SWAPPED_KEYS = (0, 2, 3, 1)  # the same, and numbers before tokens
_FLOATS = (DType.F32, DType.F16)


@attrs.frozen
class _Operand:
    """A value, and what it takes to bring it into its form: a TRANSPOSE, then a RESHAPE."""

    value: Value
    order: tuple[int, ...] | None
    shape: Shape


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
    operands: tuple[_Operand, ...]
    made: Shape


@attrs.frozen
class _Scores:
    """The way from SOFTMAX back to the first product."""

    product: Node
    nodes: tuple[Node, ...]
    scale: float = 1.0
    mask: Value | None = None
    fill: float | None = None


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
    inputs = [graph.add_value(o.shape, o.value.dtype) for o in found.operands]
    made = graph.add_value(found.made, found.nodes[-1].outputs[0].dtype)
    return Node(NAME, found.attributes, list(inputs), [made], 1, merged_origins(*found.nodes))


def _put(rewriter: Rewriter, found: _Found) -> None:
    origins, last = merged_origins(*found.nodes), found.nodes[-1]
    (result,) = last.outputs

    def inserted(op: str, attributes: object, inputs: Sequence[Value], shape: Shape) -> Value:
        made = rewriter.value(shape, inputs[0].dtype, inputs[0].name + "/attention")
        rewriter.insert(op, attributes, inputs, [made], before=last, origins=origins)
        return made

    operands = []
    for operand in found.operands:
        value = operand.value
        if operand.order is not None:
            order = rewriter.const(np.array(operand.order, np.int32))
            shape = tuple(value.shape[axis] for axis in operand.order)
            value = inserted("TRANSPOSE", NoAttrs(), [value, order], shape)
        if value.shape != operand.shape:
            value = inserted("RESHAPE", ReshapeAttrs(operand.shape), [value], operand.shape)
        operands.append(value)
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
            product = scores.product
            q, k = product.input(0), product.input(1)
            lead = q.shape[:-2]
            if product.attrs.adj_x or k.shape[:-2] != lead or v.shape[:-2] != lead:
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
        """What its operand may be, every way to read it."""
        yield from self._scaled(value, ())
        node = self._inner(value, "ADD", "SELECT", "SELECT_V2")
        if node is None:
            return
        if node.op == "ADD":
            for scores, mask in ((0, 1), (1, 0)):
                given = node.input(mask)
                if given.dtype is value.dtype and _broadcasts(given.shape, value.shape):
                    for found in self._scaled(node.input(scores), (node,)):
                        yield attrs.evolve(found, mask=given)
            return
        mask_value, fill = node.input(0), scalar_of(node.input(2))
        if fill is None or math.isnan(fill) or fill == math.inf:
            return
        fits = mask_value.dtype is DType.BOOL and _broadcasts(mask_value.shape, value.shape)
        if node.op == "SELECT" and mask_value.shape != value.shape:
            return  # it has rules of its own for vectors
        for found in self._scaled(node.input(1), (node,)) if fits else ():
            yield attrs.evolve(found, mask=mask_value, fill=fill)

    def _scaled(self, value: Value, after: tuple[Node, ...]) -> Iterator[_Scores]:
        """A product, times a number perhaps, of the shape of what follows."""
        if after and after[0].outputs[0].shape != value.shape:
            return
        product = self._inner(value, _PRODUCT)
        if product is not None:
            yield _Scores(product, (product, *after))
            return
        node = self._inner(value, "MUL", "DIV")
        if node is None:
            return
        for at in (0, 1) if node.op == "MUL" else (0,):
            number = scalar_of(node.input(1 - at))
            product = self._inner(node.input(at), _PRODUCT)
            if number is None or product is None or node.input(at).shape != value.shape:
                continue
            if node.op == "DIV":
                number = 1 / number if number else math.inf
            if math.isfinite(number):
                yield _Scores(product, (product, node, *after), number)
                return

    def _inner(self, value: Value, *ops: str) -> Node | None:
        """The node that makes a value which one other node needs, once."""
        node = self._rewriter.producer(value, *ops)
        if node is None or self._rewriter.sole_use(value) is None or not self._is_plain(node):
            return None
        return node

    def _is_plain(self, node: Node) -> bool:
        """Whether all is floats, and no activation follows."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
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
        product, last = scores.product, nodes[-1]
        q, k, v = product.input(0), product.input(1), last.input(1)
        if len(q.shape) != 4 or last.attrs.adj_y:
            return None
        keys = self._before(k, _SWAPPED if product.attrs.adj_y else _SWAPPED_KEYS)
        values = self._before(v, _SWAPPED)
        if keys is None or values is None:
            return None
        items, heads, queries, depth = q.shape
        given = self._before(q, _SWAPPED)
        back = self._rewriter.sole_use(last.outputs[0], "TRANSPOSE")
        if back is not None and _order(back) == _SWAPPED:
            nodes = (*nodes, back)
        elif queries > 1:
            return None
        if given is None and queries > 1:
            return None
        return self._found(
            scores, nodes, False, False,
            _Operand(q if given is None else given, None, (items, queries, heads, depth)),
            _Operand(keys, None, keys.shape), _Operand(values, None, values.shape),
            (items, queries, heads, v.shape[3]),
        )  # fmt: skip

    def _heads_first(self, scores: _Scores, nodes: tuple[Node, ...]) -> _Found | None:
        product, last = scores.product, nodes[-1]
        q, k, v = product.input(0), product.input(1), last.input(1)
        rank = len(q.shape)
        turned = (*range(rank - 2), rank - 1, rank - 2)
        order = None if product.attrs.adj_y else turned
        keys = k
        before = self._rewriter.producer(k, "TRANSPOSE")
        if order is not None and before is not None:
            first = _order(before)
            if first is not None:
                order = tuple(first[axis] for axis in turned)
                keys = before.input(0)
                order = None if order == tuple(range(rank)) else order
        tokens, depth = (k.shape[i] for i in ((-2, -1) if product.attrs.adj_y else (-1, -2)))
        if depth != q.shape[-1]:
            return None
        lead = _two(q.shape[:-2])
        width = v.shape[-2 if last.attrs.adj_y else -1]
        return self._found(
            scores, nodes, True, last.attrs.adj_y,
            _Operand(q, None, (*lead, *q.shape[-2:])),
            _Operand(keys, order, (*lead, tokens, depth)),
            _Operand(v, None, (*lead, *v.shape[-2:])),
            (*lead, q.shape[-2], width),
        )  # fmt: skip

    def _found(
        self, scores: _Scores, nodes: tuple[Node, ...], heads_first: bool, tokens_last: bool,
        q: _Operand, k: _Operand, v: _Operand, made: Shape,
    ) -> _Found | None:  # fmt: skip
        operands = [q, k, v]
        if scores.mask is not None:
            shape = _mask_shape(scores.mask.shape, scores.product.outputs[0].shape)
            if shape is None:
                return None
            operands.append(_Operand(scores.mask, None, shape))
        attributes = Attention(scores.scale, 0.0, heads_first, tokens_last)
        if scores.fill is not None:
            attributes = attrs.evolve(attributes, fill=scores.fill)
        return _Found(nodes, attributes, tuple(operands), made)

    def _before(self, value: Value, order: tuple[int, ...]) -> Value | None:
        """What was transposed in this order."""
        node = self._rewriter.producer(value, "TRANSPOSE")
        return node.input(0) if node is not None and _order(node) == order else None


def _order(transpose: Node) -> tuple[int, ...] | None:
    data = transpose.input(1).data
    if data is None or transpose.outputs[0].quant is not None:
        return None
    rank = len(transpose.input(0).shape)
    return tuple(axis % rank for axis in integers(data))


def _broadcasts(mask: Shape, scores: Shape) -> bool:
    """Whether a mask fits scores, and leaves them their shape; one number for all keys does not."""
    if len(mask) > len(scores) or not mask or mask[-1] != scores[-1]:
        return False
    return all(m in (1, s) for m, s in zip(mask[::-1], scores[::-1], strict=False))


def _two(lead: Shape) -> Shape:
    """The axes before the last two, as items and heads."""
    return (math.prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (math.prod(lead), 1)


def _mask_shape(mask: Shape, scores: Shape) -> Shape | None:
    """A mask's shape where scores have four axes; None where it has no such shape."""
    if len(scores) == 4:
        return mask
    whole = (1,) * (len(scores) - len(mask)) + tuple(mask)
    lead, wanted = whole[:-2], scores[:-2]
    found: list[int] = []
    # Each of the two groups of axes that become one has to be there as a whole, or not at all.
    groups = (
        ((0, len(lead) - 1), (len(lead) - 1, len(lead))) if len(lead) > 1 else ((0, len(lead)),)
    )
    for start, end in groups:
        size = math.prod(lead[start:end])
        if size != 1 and lead[start:end] != wanted[start:end]:
            return None
        found.append(size)
    if len(groups) == 1:
        found.append(1)
    return (*found, *whole[-2:])
