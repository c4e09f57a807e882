"""Moves of all elements of a tensor in a row become one, or none.

    x -> TRANSPOSE p -> TRANSPOSE q -> y             x -> TRANSPOSE p[q] -> y
    x -> TRANSPOSE -> RESHAPE -> TRANSPOSE -> y      x -> RESHAPE -> y
    x -> TRANSPOSE -> RESHAPE -> ... -> y            x -> RESHAPE -> TRANSPOSE -> RESHAPE -> y

PyTorch has channels first, and its exports put them last around each convolution: tokens are made
of an image, and patches of tokens, by several moves. They are composed as maps of indices.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.moves import Moves, composed, strides_of
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext, per_node
from tflgpu.values import frozen


@frozen(eq=False)
class _Chain:
    """Nodes that move all elements of a value, one after the other, and what they do together."""

    nodes: tuple[Node, ...]
    source: Value
    moves: Moves

    @property
    def is_needless(self) -> bool:
        """Whether all elements come out in order."""
        return self.moves.is_identity(self.source.shape)


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Merge the longest chain that ends with a node."""
    moves = _moves(context, node)
    if moves is None or moves.is_identity(node.input(0).shape):
        return False
    chain = _Chain((node,), node.input(0), moves)
    turns, best, alone = 1, None, True
    while (longer := _longer(rewriter, context, chain)) is not None:
        first = longer.nodes[0]
        turns += not _is_needless(context, first)
        alone = alone and rewriter.sole_use(chain.source) is chain.nodes[0]
        chain = longer
        if turns > 1 and _pays(context, chain, node.outputs[0].shape, alone=alone):
            best = chain
    if best is None:
        return False
    _replace(rewriter, best, alone=alone)
    return True


def _moves(context: PassContext, node: Node) -> Moves | None:
    """How a node moves all elements of its operand, each once."""
    op = context.op(node)
    if op is None or op.movement.moves is None or op.state is not None or len(node.outputs) != 1:
        return None
    moves = op.movement.moves(node) if context.is_linear(node) else None
    if moves is None or moves.operand or moves.offset:
        return None
    source, result = node.input(0), node.outputs[0]
    same = source.dtype is result.dtype and source.quant == result.quant
    whole = source.elements == result.elements > 0 and _axes(moves) is not None
    return moves if same and whole and source.data is None else None


def _is_needless(context: PassContext, node: Node) -> bool:
    moves = _moves(context, node)
    return moves is not None and moves.is_identity(node.input(0).shape)


def _longer(rewriter: Rewriter, context: PassContext, chain: _Chain) -> _Chain | None:
    """The chain with the node before it."""
    node = rewriter.producer(chain.source)
    moves = None if node is None else _moves(context, node)
    whole = None if moves is None else composed(moves, chain.moves)
    if node is None or whole is None:
        return None
    return _Chain((node, *chain.nodes), node.input(0), whole)


def _axes(moves: Moves) -> list[tuple[int, int]] | None:
    """The steps of moves, by the operand's axes in order; None where they leave some element out,
    or repeat it."""
    steps = sorted(zip(moves.strides, moves.sizes, strict=True))[::-1]
    steps = [(stride, size) for stride, size in steps if size != 1]
    fits = strides_of([size for _, size in steps]) == tuple(stride for stride, _ in steps)
    return steps if fits else None


def _pays(context: PassContext, chain: _Chain, result: Shape, *, alone: bool) -> bool:
    """Whether one TRANSPOSE between RESHAPEs has fewer copies than the chain, where nothing else
    reads what is in between; or takes none."""
    if chain.is_needless:
        return True
    turn = _Turn.of(chain, result)
    if not alone:
        return (turn.before, turn.after) == (chain.source.shape, result)
    ours = 1 + _copies(chain.source.shape, turn.before) + _copies(turn.after, result)
    theirs = sum(
        _copies(node.input(0).shape, node.outputs[0].shape) if _is_needless(context, node) else 1
        for node in chain.nodes
    )
    return ours < theirs


def _copies(source: Shape, result: Shape) -> bool:
    """Whether a RESHAPE takes a kernel: rows of channels begin at multiples of four."""
    last = (source or (1,))[-1], (result or (1,))[-1]
    return last[0] != last[1] and any(size % 4 for size in last)


@frozen
class _Turn:
    """The TRANSPOSE that does what a chain does, between RESHAPEs: its operand's shape, its order,
    and its result's shape."""

    before: Shape
    order: tuple[int, ...]
    after: Shape

    @classmethod
    def of(cls, chain: _Chain, result: Shape) -> _Turn:
        """One that keeps the last axes of the source and of the result, if it can."""
        source = chain.source.shape
        order = chain.moves.permutation(source, result)
        if order is not None:
            return cls(source, order, result)
        steps = [s for s in zip(chain.moves.sizes, chain.moves.strides, strict=True) if s[0] != 1]
        steps = _split(steps, len(steps) - 1, result[-1])
        inner = next(at for at, (_, stride) in enumerate(steps) if stride == 1)
        steps = _split(steps, inner, source[-1])
        axes = sorted(steps, key=lambda step: -step[1])
        # The result's dimensions of 1 are in front before, so that channels stay channels.
        ones = len(result) - len(steps)
        if [size for size in result if size != 1] == [size for size, _ in steps]:
            moved, ahead = iter(steps), iter(range(ones))
            order = tuple(
                next(ahead) if size == 1 else ones + axes.index(next(moved)) for size in result
            )
            return cls((*(1,) * ones, *(size for size, _ in axes)), order, result)
        order = tuple(map(axes.index, steps))
        return cls(tuple(size for size, _ in axes), order, tuple(size for size, _ in steps))


def _split(steps: list[tuple[int, int]], at: int, last: int) -> list[tuple[int, int]]:
    """Sizes and strides with one axis in two, of which the second one has a size."""
    size, stride = steps[at]
    if last in (1, size) or size % last:
        return steps
    return [*steps[:at], (size // last, stride * last), (last, stride), *steps[at + 1 :]]


def _replace(rewriter: Rewriter, chain: _Chain, *, alone: bool) -> None:
    last, value = chain.nodes[-1], chain.source
    result = last.outputs[0]
    origins = merged_origins(*chain.nodes) if alone else last.origins
    if chain.is_needless:
        made = rewriter.replace([last], "RESHAPE", ReshapeAttrs(result.shape), [value])
        made.origins = origins
        return
    turn = _Turn.of(chain, result.shape)

    def inserted(op: str, attributes: object, inputs: list[Value], shape: Shape) -> Value:
        spec = shape, result.dtype, result.name + "/moved"
        made = rewriter.result_of(op, attributes, inputs, spec, before=last, origins=origins)
        made.quant = result.quant
        return made

    if turn.before != value.shape:
        value = inserted("RESHAPE", ReshapeAttrs(turn.before), [value], turn.before)
    order = rewriter.const(np.array(turn.order, np.int32), "perm")
    if turn.after == result.shape:
        made = rewriter.replace([last], "TRANSPOSE", NoAttrs(), [value, order])
    else:
        value = inserted("TRANSPOSE", NoAttrs(), [value, order], turn.after)
        made = rewriter.replace([last], "RESHAPE", ReshapeAttrs(result.shape), [value])
    made.origins = origins


PASS = Pass("merge_moves", per_node(_rewrite))
