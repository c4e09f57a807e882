"""Masks of attention: whether one fits the scores that it is added to, and its form."""

from __future__ import annotations

import math

import attrs
import numpy as np

from tflgpu.ir.graph import Shape, Value


@attrs.frozen
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


def joined(mask: Shape, apart: Shape, scores: Shape) -> Shape | None:
    """The shape of a mask of scores whose first axis is two, where it is one; None where that
    cannot be."""
    if len(apart) != len(scores) + 1 or (apart[0] * apart[1], *apart[2:]) != tuple(scores):
        return None
    whole = (1,) * (len(apart) - len(mask)) + tuple(mask)
    if whole[:2] != apart[:2] and whole[:2] != (1, 1):
        return None
    return (whole[0] * whole[1], *whole[2:])


def of_four_axes(mask: ReshapedValue, scores: Shape) -> ReshapedValue | None:
    """A mask, where scores have four axes; None where it has no such form."""
    shape = _mask_shape(mask.shape, scores)
    plus = None if mask.plus is None else of_four_axes(mask.plus, scores)
    if shape is None or (plus is None) is not (mask.plus is None):
        return None
    return attrs.evolve(mask, shape=shape, plus=plus)


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
