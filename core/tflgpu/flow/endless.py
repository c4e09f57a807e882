"""A WHILE that can be seen never to end: its values come again, and nothing else decides.

LiteRT runs such a loop for ever. One comes about where a condition never fails for the numbers that a
user happened to give: `while max(x) < 50` of an empty x, whose largest element is the lowest float, or
of zeros that are doubled in each round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.flow.drawn import Draws
from tflgpu.flow.operators import keeps_state, reached
from tflgpu.flow.steps import Given
from tflgpu.flow.store import Handle
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.model_file import SubgraphInfo

#: Rounds before the first look; each look after that comes after twice as many, so that a loop that
#: ends pays next to nothing for them.
FIRST = 1024
#: In how many rounds values must come again to be noticed.
_PERIOD = 4


def decided_by_values(subgraphs: tuple[SubgraphInfo, ...], bodies: Iterable[int]) -> bool:
    """Whether a round follows from the loop's values alone: no variables, no state, no drawn numbers, no
    operator that nobody here knows."""
    inside = [subgraphs[number] for number in reached(subgraphs, bodies)]
    return not keeps_state(subgraphs, bodies) and not any(
        any(o.is_custom or o.name in Draws.NAMES for o in info.operators)
        or any(t.is_variable for t in info.tensors)
        for info in inside
    )


class Watch:
    """Looks at the values of one loop, while it runs.

    Attributes:
        rounds: How many were counted.
    """

    def __init__(self, where: str, *, decided: bool) -> None:
        """``where`` is what errors name; where the loop is not ``decided_by_values``, nothing is said."""
        self.rounds = 0
        self._where, self._decided = where, decided
        self._next = FIRST
        self._before: list[Given] = []

    def due(self) -> bool:
        """Count a round that is to be run; whether `look` is wanted before it."""
        self.rounds += 1
        return self._decided and self._next <= self.rounds <= self._next + _PERIOD

    def look(self, state: Sequence[Given]) -> None:
        """See whether these values were there a few rounds ago.

        Raises:
            ModelError: they were, so that the loop never ends.
        """
        since = self.rounds - self._next
        if since == 0:
            self._before = [np.array(v) if isinstance(v, np.ndarray) else v for v in state]
            return
        if all(_same(a, b) for a, b in zip(self._before, state, strict=True)):
            self.fail(since)
        if since == _PERIOD:
            self._next, self._before = 2 * self._next, []

    def fail(self, rounds: int) -> None:
        """Say that so many rounds leave what decides as it was.

        Raises:
            ModelError: always.
        """
        after = "a round leaves them" if rounds == 1 else f"{rounds:,} rounds leave them"
        raise ModelError(
            f"{self._where} never ends: its condition depends on the loop's values, and {after} as they "
            "were. Look at what the model was given: an empty tensor, NaN, infinities and zeros are what "
            "conditions are seldom written for"
        )


def _same(before: Given, now: Given) -> bool:
    if isinstance(before, Handle) or isinstance(now, Handle):
        return before == now
    return before.shape == now.shape and _bits(before) == _bits(now)


def _bits(array: Array) -> object:
    """What tells two arrays apart: also two zeros, and not two equal NaN."""
    return array.tolist() if array.dtype == object else array.tobytes()
