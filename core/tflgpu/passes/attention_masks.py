"""Masks of attention: whether one fits the scores that it is added to, and its form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tflgpu.ir.graph import Shape, Value
from tflgpu.values import frozen


@frozen
class ReshapedValue:
    """A value, and what it takes to bring it into its form: a TRANSPOSE, then a RESHAPE; then
    another one is added."""

    value: Value
    order: tuple[int, ...] | None
    shape: Shape
    plus: ReshapedValue | None = None
    adding: object = None  # attributes of that ADD

    @property
    def whole(self) -> Shape:
        """Its shape then."""
        return self.shape if self.plus is None else np.broadcast_shapes(self.shape, self.plus.shape)


def broadcasts(mask: Shape, scores: Shape) -> bool:
    """Whether a mask fits scores, and leaves them their shape; one number for all keys does not."""
    if len(mask) > len(scores) or not mask or mask[-1] != scores[-1]:
        return False
    return all(m in (1, s) for m, s in zip(mask[::-1], scores[::-1], strict=False))


def regrouped(mask: Shape, made: Shape, scores: Shape) -> Shape | None:
    """The shape of a mask for ``scores``, which broadcasts to ``made``, the same numbers in a form
    of more or fewer axes; None where it has none: it repeats in the middle of an axis then."""
    whole = (1,) * (len(made) - len(mask)) + tuple(mask)
    found: list[int] = []
    for ours, theirs in _groups(made, scores):
        sizes = [whole[axis] for axis in ours]
        if all(size == 1 for size in sizes):
            found += [1] * len(theirs)
        elif sizes == [made[axis] for axis in ours]:
            found += [scores[axis] for axis in theirs]
        else:
            return None
    return tuple(found)


def _groups(made: Shape, other: Shape) -> Iterator[tuple[range, range]]:
    """The axes of two shapes of the same elements, by the fewest that make the same sizes."""
    a = b = 0
    while a < len(made) or b < len(other):
        first, second, ours, theirs = a, b, 1, 1
        while ours != theirs or (a, b) == (first, second):
            if b == len(other) or (ours <= theirs and a < len(made)):
                ours, a = ours * made[a], a + 1
            else:
                theirs, b = theirs * other[b], b + 1
        yield range(first, a), range(second, b)
