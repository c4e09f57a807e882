"""A RESHAPE between a convolution and its bias, or other elementwise nodes, moves behind them.

    CONV_2D -> RESHAPE -> ADD c              CONV_2D -> ADD c -> RESHAPE
    CONV_2D -> RESHAPE -> GELU               CONV_2D -> GELU -> RESHAPE
    CONV_2D -> RESHAPE -> ADD x              CONV_2D -> ADD RESHAPE(x) -> RESHAPE
    CONV_2D [n, c] -> ADD x of [1, n, c]     CONV_2D -> ADD RESHAPE(x) -> RESHAPE
    CONV_2D -> RESHAPE -> x, MUL(x, LOGISTIC(x))     CONV_2D -> x, MUL(x, LOGISTIC(x)) -> RESHAPE

The arithmetic can then fold into the filter (`fuse_after_filter`), and the rest is part of the
store that makes its operand; Keras has a RESHAPE on either side of a dense layer of sequences.
Channels must stay the last dimension. Another operand, x, is only reshaped where others read it too
(a residual's input): no RESHAPE goes there and back.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext, per_node
from tflgpu.passes.filters import filter_of

#: Elementwise nodes between a filter and a RESHAPE: a bias, a scale, an activation, some more.
_FAR = 8


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Move one that nothing else reads, but nodes of one operand whose result this one reads."""
    if not _is_elementwise(context, node):
        return False
    for at, value in enumerate(node.inputs):
        found = None if value is None else _source(rewriter, context, node, value)
        if value is None or found is None:
            continue
        source, branch = found
        inside = {id(branch[-1].outputs[0]) if branch else 0, id(value)}
        others = [v for v in node.inputs if v is not None and id(v) not in inside]
        if all(_fits(rewriter, other, node.outputs[0]) for other in others):
            _move(rewriter, node, at, source, branch)
            return True
    return False


def _move(rewriter: Rewriter, node: Node, at: int, source: Value, branch: Sequence[Node]) -> None:
    result, value = node.outputs[0], node.input(at)
    reshape = None if value is source else rewriter.producer(value)
    known = {id(value): source}

    def inserted(each: Node, before: Node) -> Value:
        """A node of the same on what was not reshaped."""
        operands = [
            v and (known.get(id(v)) or _reshaped(rewriter, v, source, each)) for v in each.inputs
        ]
        made = rewriter.result_of(
            each.op,
            each.attrs,
            operands,
            (source.shape, result.dtype, each.outputs[0].name + "/source"),
            before=before,
            origins=each.origins,
            version=each.version,
        )
        known[id(each.outputs[0])] = made
        return made

    for each in branch:
        inserted(each, node)
    moved = inserted(node, node)
    after = rewriter.replace([node], "RESHAPE", ReshapeAttrs(result.shape), [moved])
    after.origins = node.origins if reshape is None else reshape.origins
    for each in (*reversed(branch), *(() if reshape is None else (reshape,))):
        rewriter.remove(each)


def _is_elementwise(context: PassContext, node: Node) -> bool:
    op = context.op(node)
    return op is not None and op.is_elementwise(node) and len(node.outputs) == 1


def _source(
    rewriter: Rewriter, context: PassContext, node: Node, value: Value
) -> tuple[Value, list[Node]] | None:
    """What ``value``, an operand of ``node``, was reshaped from, and the nodes that compute another
    operand of it alone; None where the RESHAPE has to stay."""
    result = node.outputs[0]
    if value.dtype is not result.dtype or value.is_const:
        return None  # what whole numbers or booleans a node makes, a device might not reshape
    reshape = rewriter.producer(value, "RESHAPE")
    if value.shape != result.shape:
        ahead = len(result.shape) - len(value.shape)
        if (1,) * ahead + value.shape != result.shape or rewriter.sole_use(value) is not node:
            return None
        return (value, []) if _behind_filter(rewriter, context, value) else None
    if reshape is None or rewriter.is_output(value):
        return None
    source = reshape.input(0)
    branch = _branch(rewriter, context, node, value)
    fits = source.shape[-1:] == value.shape[-1:] and rewriter.sole_use(source) is reshape
    fits = fits and branch is not None and _behind_filter(rewriter, context, source)
    return (source, branch) if fits and branch is not None else None


def _branch(
    rewriter: Rewriter, context: PassContext, node: Node, value: Value
) -> list[Node] | None:
    """The nodes by which ``node`` reads a value a second time, computed of it and of numbers alone;
    none where it is its only reader; None where others read it."""
    readers = rewriter.uses(value)
    if len(readers) == 1:
        return []
    for first in readers if len(readers) == 2 and any(r is node for r in readers) else ():
        found: list[Node] = []
        each: Node | None = first
        while each is not None and each is not node and len(found) < _FAR:
            known = found[-1].outputs[0] if found else value
            numbers = [v for v in each.inputs if v is not None and v is not known]
            made = each.outputs[0]
            alike = made.shape == value.shape and made.dtype is value.dtype
            if not (_is_elementwise(context, each) and alike and all(map(_is_number, numbers))):
                break
            found.append(each)
            each = rewriter.sole_use(made)
        if each is node and found:
            return found
    return None


def _is_number(value: Value) -> bool:
    return value.is_const and value.elements == 1


def _behind_filter(rewriter: Rewriter, context: PassContext, value: Value) -> bool:
    """Whether a filter makes ``value``, or elementwise nodes after a filter."""
    maker = rewriter.producer(value)
    for _ in range(_FAR):
        if maker is None or filter_of(maker, context) is not None:
            break
        op = context.op(maker)
        own = [v for v in maker.inputs if v is not None and v.shape == value.shape]
        own = [v for v in own if rewriter.sole_use(v) is maker]
        if op is None or not op.is_elementwise(maker) or len(own) != 1:
            return False
        maker = rewriter.producer(own[0])
    return filter_of(maker, context) is not None


def _fits(rewriter: Rewriter, other: Value, result: Value) -> bool:
    """Whether another operand can be read beside what another form of ``result`` is made of."""
    if other.data is not None:
        last = result.shape[-1]
        return other.elements == 1 or other.elements == (other.shape or (0,))[-1] == last
    return other.shape == result.shape and rewriter.sole_use(other) is None


def _reshaped(rewriter: Rewriter, other: Value, source: Value, node: Node) -> Value:
    """The other operand of ``node`` after the RESHAPE has moved: a constant of another shape than
    its result's as a vector, which broadcasts against any rank; anything else in the source's
    shape."""
    if other.data is not None:
        # Not all elementwise ops broadcast: what had the result's shape has it still.
        whole = other.shape == node.outputs[0].shape
        return rewriter.const(other.data.reshape(source.shape if whole else -1), other.name)
    spec = source.shape, other.dtype, other.name + "/reshaped"
    attributes = ReshapeAttrs(source.shape)
    return rewriter.result_of("RESHAPE", attributes, [other], spec, before=node)


PASS = Pass("sink_reshapes", per_node(_rewrite))
