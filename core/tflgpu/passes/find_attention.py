"""Attention that converters wrote as operators becomes ATTENTION.

    BATCH_MATMUL(q, k) -> [MUL or DIV by a number] -> [ADD(mask)] -> [ADD(mask) or SELECT(mask)]
        -> SOFTMAX -> BATCH_MATMUL(v)

Keras' MultiHeadAttention, einsum and tf.matmul give that, with heads before tokens, to which
queries, keys and values were transposed. Keras 2 has BATCH_MATMUL(k, q) and a TRANSPOSE behind it.
PyTorch multiplies queries and keys by the root of the scale, and joins items and heads to one axis
by RESHAPEs around each product; a product of two matrices is a FULLY_CONNECTED whose weights are
made at run time. Where all of them were transposed, and the result is transposed back, ATTENTION
reads what was there before (`attention_operands`); so it does where heads were repeated for groups
of queries' heads. Two masks (Swin's) are added to one. Files whose converter kept the name have a
composite instead (`tflgpu.compiler.composites`).

The compiler decides whether it becomes a node: a CPU has better kernels for the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import scalar_of
from tflgpu.ops.attention import NAME, Attention, AttentionSizes
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.transpose import order_of
from tflgpu.passes.attention_masks import ReshapedValue, broadcasts, regrouped
from tflgpu.passes.attention_operands import OperandForm, OperandReader, scaling
from tflgpu.passes.base import PassContext, both_orders
from tflgpu.values import evolve, frozen

#: By the operators of its last product.
Key = tuple[int, ...]
_PRODUCTS = ("BATCH_MATMUL", "FULLY_CONNECTED")
_FLOATS = (DType.F32, DType.F16)


@frozen(eq=False)
class _Found:
    """Operators that are attention.

    Attributes:
        nodes: Those that go away; the last one makes the result.
        attributes: What they compute.
        operands: Of one node.
        made: The result's shape, of four axes.
        factor: Of queries and keys; it is part of the scale.
        passed: The nodes between the operands and the first or last product.
    """

    nodes: tuple[Node, ...]
    attributes: Attention
    operands: tuple[ReshapedValue, ...]
    made: Shape
    factor: float = 1.0
    passed: tuple[Node, ...] = ()

    @property
    def origins(self) -> tuple[int, ...]:
        """The operators of the file that it stands for."""
        return merged_origins(*self.passed, *self.nodes)


#: An operand at each step back.
_Forms = Sequence[OperandForm]


@frozen(eq=False)
class _Product:
    """A matrix product of ``x`` and ``y``; ``y_in_rows``: the last axis of both is summed over."""

    node: Node
    x: Value
    y: Value
    y_in_rows: bool

    @property
    def lead(self) -> Shape:
        """The axes before those of a matrix. FULLY_CONNECTED has one matrix, however many axes its
        rows are in."""
        return self.y.shape[:-2]

    @property
    def rows(self) -> int:
        """Of ``x``, of one matrix."""
        return self.x.elements // (math.prod(self.lead) * self.x.shape[-1])


@frozen
class _Scores:
    """The way from SOFTMAX back to the first product; ``turned``: that of keys and queries."""

    product: _Product
    nodes: tuple[Node, ...]
    turned: bool = False
    scale: float = 1.0
    masks: tuple[_Added, ...] = ()
    fill: float | None = None


@frozen
class _Added:
    """A mask of scores: those without it, and their form with it."""

    scores: Value
    mask: Value
    made: Shape
    node: Node


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
    for last in rewriter.nodes(*_PRODUCTS):
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
    return Node(NAME, found.attributes, list(inputs), [made], 1, found.origins)


def _put(rewriter: Rewriter, found: _Found) -> None:
    origins, last = found.origins, found.nodes[-1]
    (result,) = last.outputs

    def inserted(op: str, attributes: object, inputs: Sequence[Value], shape: Shape) -> Value:
        spec = shape, inputs[0].dtype, inputs[0].name + "/attention"
        return rewriter.result_of(op, attributes, inputs, spec, before=last, origins=origins)

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
        node = rewriter.replace(found.nodes, NAME, found.attributes, operands)
    else:
        whole = inserted(NAME, found.attributes, operands, found.made)
        node = rewriter.replace(found.nodes, "RESHAPE", ReshapeAttrs(result.shape), [whole])
    node.origins = origins
    rewriter.count()


class _Matching:
    def __init__(self, rewriter: Rewriter, context: PassContext) -> None:
        self._rewriter, self._context = rewriter, context
        self._reader = OperandReader(rewriter, context, self._is_plain)

    def match(self, last: Node) -> _Found | None:
        """Attention that ends with a product."""
        product = self._product(last)
        softmax = None if product is None else self._inner(product.x, "SOFTMAX")
        if product is None or softmax is None or softmax.attrs.beta != 1:
            return None
        for scores in self._scores(softmax.input(0)):
            if _no_ones(scores.product.lead) != _no_ones(product.lead):
                continue
            found = self._found(scores, softmax, product)
            if found is not None:
                return found
        return None

    # Back from the softmax

    def _scores(self, value: Value) -> Iterator[_Scores]:
        """Every way to read a SOFTMAX's operand as scores."""
        yield from self._scaled(value, ())
        for one in self._added(value):
            for found in self._scaled(one.scores, (one.node,)):
                yield evolve(found, masks=(one,))
            for two in self._added(one.scores):
                for found in self._scaled(two.scores, (two.node, one.node)):
                    yield evolve(found, masks=(one, two))
        node = self._inner(value, "SELECT", "SELECT_V2")
        if node is None:
            return
        mask, made, fill = node.input(0), node.outputs[0].shape, scalar_of(node.input(2))
        if fill is None or math.isnan(fill) or fill == math.inf:
            return
        scores = node.input(1)
        fits = mask.dtype is DType.BOOL and broadcasts(mask.shape, made)
        if not fits or scores.elements != math.prod(made):
            return
        if node.op == "SELECT" and mask.shape != made:
            return  # it has rules of its own for vectors
        for found in self._scaled(scores, (node,)):
            yield evolve(found, masks=(_Added(scores, mask, made, node),), fill=fill)

    def _added(self, value: Value) -> Iterator[_Added]:
        """Scores, and a mask that is added to them, perhaps in a form of other axes."""
        node = self._inner(value, "ADD")
        for scores, mask in both_orders(node) if node is not None else ():
            assert node is not None
            made = node.outputs[0].shape
            if scores.elements == math.prod(made) and broadcasts(mask.shape, made):
                yield _Added(scores, mask, made, node)

    def _scaled(self, value: Value, after: tuple[Node, ...]) -> Iterator[_Scores]:
        """A product, times a number perhaps."""
        found = self._first_product(value, after)
        if found is not None:
            yield found
            return
        node = self._inner(value, "MUL", "DIV")
        scaled = None if node is None else scaling(node)
        if node is None or scaled is None or scaled[0].elements != value.elements:
            return
        found = self._first_product(scaled[0], (node, *after))
        if found is not None:
            yield evolve(found, scale=scaled[1])

    def _first_product(self, value: Value, after: tuple[Node, ...]) -> _Scores | None:
        """A product, or one with its last two axes exchanged."""
        node = self._inner(value, *_PRODUCTS, "TRANSPOSE")
        if node is None:
            return None
        if node.op != "TRANSPOSE":
            product = self._product(node)
            return None if product is None else _Scores(product, (node, *after))
        inner, rank = self._inner(node.input(0), *_PRODUCTS), len(node.input(0).shape)
        product = None if inner is None else self._product(inner)
        if inner is None or product is None:
            return None
        if order_of(node) != (*range(rank - 2), rank - 1, rank - 2):
            return None
        if node.input(0).shape[-2:] != inner.outputs[0].shape[-2:]:
            return None
        return _Scores(product, (inner, node, *after), turned=True)

    def _product(self, node: Node) -> _Product | None:
        """A node as a product of what is made at run time."""
        if not self._is_plain(node):
            return None
        x, y = node.input(0), node.input(1)
        if 0 in (*x.shape, *y.shape):
            return None
        if node.op == "BATCH_MATMUL":
            same = x.shape[:-2] == y.shape[:-2]
            return _Product(node, x, y, node.attrs.adj_y) if same and not node.attrs.adj_x else None
        bias = node.optional_input(2)
        there = y.is_const or len(y.shape) != 2 or x.shape[-1:] != y.shape[-1:]
        return None if there or bias is not None else _Product(node, x, y, y_in_rows=True)

    def _inner(self, value: Value, *ops: str) -> Node | None:
        """The node that makes a value which one other node needs, once. RESHAPEs may follow that
        leave the last axis as it is."""
        while self._rewriter.sole_use(value) is not None:
            node = self._rewriter.producer(value)
            if node is None or node.op in ops:
                return node if node is not None and self._is_plain(node) else None
            if not self._reader.keeps_order(node):
                return None
            source = node.input(0)
            if source.shape[-1:] != value.shape[-1:]:
                return None
            value = source
        return None

    def _is_plain(self, node: Node) -> bool:
        """Whether all is floats, and no activation follows."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        op = self._context.op(node)
        if op is not None and op.movement.moves is not None:
            values = [node.input(0), node.outputs[0]]
        floats = all(v.dtype in _FLOATS or v.dtype is DType.BOOL for v in values)
        plain = floats and all(v.quant is None and v.shape_known for v in values)
        return (
            plain
            and len({v.dtype for v in values} - {DType.BOOL}) == 1
            and self._context.is_linear(node)
        )

    # Operands

    def _found(self, scores: _Scores, softmax: Node, last: _Product) -> _Found | None:
        first = scores.product
        rows, columns = first.rows, first.node.outputs[0].shape[-1]
        tokens = (columns, rows) if scores.turned else (rows, columns)
        shapes = (softmax.outputs[0].shape, *(added.made for added in scores.masks))
        shape = _four_axes(first.lead, tokens, shapes)
        x, y = OperandForm(first.x, in_rows=True), OperandForm(first.y, first.y_in_rows)
        q, k = (
            self._reader.forms(form, scales=True) for form in ((y, x) if scores.turned else (x, y))
        )
        v = self._reader.forms(OperandForm(last.y, not last.y_in_rows), scales=False)
        width, depth = last.node.outputs[0].shape[-1], first.x.shape[-1]
        sizes = AttentionSizes(shape[0], shape[2], shape[3], shape[1], shape[1], depth, width)
        found = self._tokens_first(sizes, q, k, v, last.node) or self._heads_first(sizes, q, k, v)
        scale, masks = scores.scale * found.factor, []
        for added in scores.masks:
            form = regrouped(added.mask.shape, added.made, shape)
            if form is None:
                return None
            masks.append(ReshapedValue(added.mask, None, form))
        if not math.isfinite(scale):
            return None
        operands = list(found.operands)
        if masks:
            plus = masks[1] if masks[1:] else None
            adding = scores.masks[0].node.attrs
            operands.append(evolve(masks[0], plus=plus, adding=adding))
        attributes = evolve(found.attributes, scale=scale)
        if scores.fill is not None:
            attributes = evolve(attributes, fill=scores.fill)
        nodes = (*scores.nodes, softmax, last.node, *found.nodes)
        return evolve(found, nodes=nodes, attributes=attributes, operands=tuple(operands))

    def _tokens_first(
        self, sizes: AttentionSizes, q: _Forms, k: _Forms, v: _Forms, last: Node
    ) -> _Found | None:
        """Where keys and values were transposed to heads first, and the rest was too or is of one
        token, which lies the same both ways."""
        lead = (sizes.items, sizes.heads)
        keys = self._reader.tokens_first(k, lead, scales=True)
        values = self._reader.tokens_first(v, lead, scales=False)
        query = self._reader.tokens_first(q, lead, scales=True)
        back = self._reader.back(last.outputs[0], lead)
        if sizes.queries == 1:
            query = query or q[-1]
        if keys is None or values is None or query is None:
            return None
        if back is None and sizes.queries > 1:
            return None
        attributes = Attention(1.0, heads_first=False)
        return self._read(attributes, sizes, (query, keys, values), () if back is None else (back,))

    def _heads_first(self, sizes: AttentionSizes, q: _Forms, k: _Forms, v: _Forms) -> _Found:
        chosen = tuple(
            next((form for form in reversed(forms) if form.in_rows), forms[-1])
            for forms in (q, k, v)
        )
        attributes = Attention(1.0, heads_first=True, tokens_last=not chosen[2].in_rows)
        return self._read(attributes, sizes, chosen, ())

    def _read(
        self,
        attributes: Attention,
        sizes: AttentionSizes,
        forms: Sequence[OperandForm],
        nodes: tuple[Node, ...],
    ) -> _Found:
        """The node of these operands; its masks are still to come."""
        heads = 1 if attributes.heads_first else 2
        whole = sizes.operands(attributes)
        q, k = (
            self._reader.in_rows(form, shape)
            for form, shape in zip(forms[:2], whole[:2], strict=True)
        )
        v = ReshapedValue(forms[2].value, None, whole[2])
        few_k, few_v = (self._reader.not_repeated(operand, heads) for operand in (k, v))
        if few_k and few_v and few_k.shape[heads] == few_v.shape[heads]:
            k, v = few_k, few_v
        factor = forms[0].factor * forms[1].factor
        passed = tuple(node for form in forms for node in form.passed)
        return _Found(nodes, attributes, (q, k, v), whole[3], factor, passed)


def _four_axes(lead: Shape, tokens: tuple[int, int], shapes: Iterable[Shape]) -> Shape:
    """Scores as items, heads, queries and keys: of two axes before tokens, or in a form of four
    axes that they have on their way; else what is one axis is that of items."""
    if len(lead) != 2:
        for shape in shapes:
            if len(shape) == 4 and shape[2:] == tokens:
                return shape
    return (*((math.prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (math.prod(lead), 1)), *tokens)


def _no_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
