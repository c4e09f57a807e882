"""Positions of tensors that do not count in a run, although there is room for them: those behind a
text that is shorter than its plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from tflgpu.values import frozen


@frozen(eq=False)
class AbsentPositions:
    """Which positions they are.

    Attributes:
        count: The id of the graph's input i32 [1] that says how many there are at the end of an
            axis.
        axes: By the id of a tensor: its shape, and its axis that they are at the end of.
        filled: The ids of those that hold a number there which what reads them relies on.
    """

    count: int
    axes: Mapping[int, tuple[tuple[int, ...], int]]
    filled: AbstractSet[int]

    def axis_of(
        self, shape: tuple[int, ...], tensors: Iterable[tuple[int, tuple[int, ...]]]
    ) -> int | None:
        """The axis of a tensor at whose end they are; None where none is known of.

        Args:
            shape: The tensor's.
            tensors: The ids and shapes of all, itself among them, that have the same numbers in
                row-major order.
        """
        for id, its_shape in tensors:
            known, axis = self.axes.get(id, ((), 0))
            if known and known == its_shape:
                same = math.prod(known[:axis]), known[axis]
                places = ((math.prod(shape[:i]), n) for i, n in enumerate(shape))
                return next((i for i, place in enumerate(places) if place == same), None)
        return None
