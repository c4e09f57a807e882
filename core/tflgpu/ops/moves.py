"""Where each element of a result comes from, for ops that move elements in regular steps.

TRANSPOSE of [h, w, c] to [c, h, w]: sizes (c, h, w), strides (1, w * c, c).
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.graph import Node, Shape
from tflgpu.values import frozen


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements apart neighbours along each axis are, row-major."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(1, size)
    return tuple(reversed(found))


@frozen
class Moves:
    """The result's elements in row-major order are the operand's at ``offset + sum(i * stride)``,
    where the index i runs over ``sizes`` in row-major order.

    ``sizes`` need not be the result's shape: an op that splits a dimension, or joins two, counts as
    it likes.

    Attributes:
        operand: Its position.
        sizes: How often each step is taken; their product is the number of the result's elements.
        strides: Elements of the operand that each step passes over; 0 repeats, < 0 goes backwards.
        offset: The operand's element that comes first.
    """

    operand: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def is_identity(self, shape: Shape) -> bool:
        """Whether all elements of an operand of this shape come out, in order."""
        return merged(self) == merged(reordered(self.operand, shape, range(len(shape))))

    def permutation(self, shape: Shape, result: Shape) -> tuple[int, ...] | None:
        """The order of axes by which a TRANSPOSE makes ``result`` of ``shape`` in the same way;
        None where none does. Axes of size 1 stay in order."""
        if 0 in shape or sorted(shape) != sorted(result):
            return None
        steps = zip(shape, strides_of(shape), strict=True)
        at = {size_and_step: axis for axis, size_and_step in enumerate(steps)}
        ones = iter([axis for axis, size in enumerate(shape) if size == 1])
        order: list[int] = []
        for size, step in zip(result, strides_of(result), strict=True):
            axis = next(ones) if size == 1 else at.get((size, self._source(step) - self.offset))
            if axis is None:
                return None
            order.append(axis)
        same = merged(self) == merged(reordered(self.operand, shape, order))
        return tuple(order) if same and len(set(order)) == len(order) else None

    def _source(self, place: int) -> int:
        """Where in the operand the result's element ``place`` is."""
        found = self.offset
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            place, index = divmod(place, size)
            found += index * stride
        return found


def merged(moves: Moves) -> Moves:
    """The same in as few steps as there can be, so that equal moves are equal values."""
    if 0 in moves.sizes:
        return Moves(moves.operand, (0,), (0,))
    steps: list[tuple[int, int]] = []
    for size, stride in zip(moves.sizes, moves.strides, strict=True):
        if size == 1:
            continue
        if steps and steps[-1][1] == size * stride:
            steps[-1] = (steps[-1][0] * size, stride)
        else:
            steps.append((size, stride))
    sizes, strides = tuple(size for size, _ in steps), tuple(stride for _, stride in steps)
    return Moves(moves.operand, sizes, strides, moves.offset)


def reordered(operand: int, shape: Shape, axes: Sequence[int]) -> Moves:
    """What a TRANSPOSE of an operand of this shape does."""
    steps = strides_of(shape)
    return Moves(operand, tuple(shape[a] for a in axes), tuple(steps[a] for a in axes))


def composed(first: Moves, then: Moves) -> Moves | None:
    """What ``then`` makes of the result of ``first``, of the operand of that; None where it is not
    regular."""
    first, then = merged(first), merged(then)
    if 0 in (*first.sizes, *then.sizes) or any(stride <= 0 for stride in then.strides):
        return None
    lengths, steps = first.sizes or (1,), first.strides or (1,)
    apart = strides_of(lengths)
    rest, reached = then.offset, []  # how far along each axis of the result in between
    for each in apart:
        at, rest = divmod(rest, each)
        reached.append(at)
    offset = first.offset + sum(at * step for at, step in zip(reached, steps, strict=True))
    found: list[tuple[int, int]] = []
    for count, stride in zip(then.sizes, then.strides, strict=True):
        pieces: list[tuple[int, int]] = []
        size, far = count, stride
        while size > 1:
            axis = next((a for a, each in enumerate(apart) if each <= far), None)
            if axis is None:
                return None
            step, rest = divmod(far, apart[axis])
            fit = -(-lengths[axis] // step)
            taken = min(size, fit)
            if rest or taken == 1 or size % taken or (taken < size and lengths[axis] % step):
                return None
            pieces.append((taken, step * steps[axis]))
            reached[axis] += step * (taken - 1)
            size, far = size // taken, far * taken
        found += pieces[::-1]
    if any(at >= length for at, length in zip(reached, lengths, strict=True)):
        return None
    sizes, strides = tuple(size for size, _ in found), tuple(stride for _, stride in found)
    return merged(Moves(first.operand, sizes, strides, offset))


def whole(node: Node) -> Moves:
    """`Movement.moves` of an op that reads operand 0 in order, and gives it another shape."""
    shape = node.input(0).shape
    return reordered(0, shape, range(len(shape)))
