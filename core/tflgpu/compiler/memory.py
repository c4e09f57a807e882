"""Offsets for tensors that share arenas, from their lifetimes: one arena, or several where one
would be larger than the device's largest buffer.

Two greedy strategies, as in the literature on memory planning for inference (Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020): largest tensor first, and
widest step first. Neither always wins, so both are computed and the smaller arena is taken.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from random import Random

from tflgpu.values import frozen

#: Tensors that a search places, in all orders that it tries: about a second.
_BUDGET = 40_000


@frozen
class Usage:
    """A tensor that must exist from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Usage) -> bool:
        """Whether both exist at some step."""
        return self.first <= other.last and other.first <= self.last


@frozen
class Assignment:
    """Where each of the usages given lies (its arena, and its offset there), and the arenas' sizes,
    in bytes."""

    arenas: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strategy: str

    @property
    def total(self) -> int:
        """Bytes of all arenas."""
        return sum(self.sizes)


def assign(
    usages: Sequence[Usage], alignment: int, limit: float = math.inf, *, search: bool = False
) -> Assignment:
    """The smaller of both strategies' arenas; every offset is a multiple of ``alignment``.

    No arena is larger than ``limit`` bytes, but for one whose only tensor is. With ``search``, and
    where neither arena is the smallest that there can be, other orders are tried.
    """
    orders = {
        "greedy by size": _by_size(usages),
        "greedy by breadth": _by_breadth(usages),
    }
    plans = {name: _place(usages, order, alignment, limit, name) for name, order in orders.items()}
    best = min(plans.values(), key=lambda plan: plan.total)
    return _searched(usages, alignment, limit, best, orders[best.strategy]) if search else best


def _searched(
    usages: Sequence[Usage], alignment: int, limit: float, best: Assignment, order: Sequence[int]
) -> Assignment:
    """Try orders in which a tensor was moved to the front of a good one: hill climbing, from a seed
    that is always the same, until the arena is as large as what exists at some step, or the
    budget is spent."""
    steps = _steps(usages).values()
    least = max((sum(_rounded(usages[i].nbytes, alignment) for i in s) for s in steps), default=0)
    random, budget = Random(0), _BUDGET  # noqa: S311
    kept = list(order)
    while best.total > least and budget > 0:
        budget -= len(usages)
        tried = kept.copy()
        for _ in range(random.randint(1, 3)):
            moved = tried.pop(random.randrange(len(tried)))
            tried.insert(random.randrange(len(tried) + 1), moved)
        plan = _place(usages, tried, alignment, limit, "search")
        if plan.total <= best.total:
            kept, best = tried, plan
    return best


def _steps(usages: Sequence[Usage]) -> dict[int, list[int]]:
    """Which usages exist at a step, by the step. Breadth only changes where a tensor begins, so
    those steps are all that matter."""
    steps: dict[int, list[int]] = {}
    alive: list[int] = []
    for i in sorted(range(len(usages)), key=lambda i: (usages[i].first, i)):
        first = usages[i].first
        if first not in steps:
            alive = [j for j in alive if usages[j].last >= first]
        alive.append(i)
        steps[first] = sorted(alive)
    return steps


def _by_size(usages: Sequence[Usage]) -> list[int]:
    return sorted(range(len(usages)), key=lambda i: (-usages[i].nbytes, usages[i].first))


def _by_breadth(usages: Sequence[Usage]) -> list[int]:
    order: dict[int, None] = {}
    steps = _steps(usages).items()
    breadths = [(sum(usages[i].nbytes for i in alive), step, alive) for step, alive in steps]
    for _, _, alive in sorted(breadths, key=lambda s: (-s[0], s[1])):
        order.update(dict.fromkeys(sorted(alive, key=lambda i: -usages[i].nbytes)))
    return list(order)


def _place(
    usages: Sequence[Usage], order: Iterable[int], alignment: int, limit: float, strategy: str
) -> Assignment:
    """Give each tensor, in order, the smallest gap among those alive with it that it fits; or the
    end of the first arena that has room for it; or an arena of its own, where others may follow."""
    places = [(0, 0)] * len(usages)
    # What was placed, by the steps at which it exists: a graph has thousands of tensors, of which
    # few exist together.
    placed: dict[int, list[int]] = {}
    firsts = sorted({u.first for u in usages})

    def steps_of(usage: Usage) -> list[int]:
        start = bisect.bisect_left(firsts, usage.first)
        return firsts[start : bisect.bisect_right(firsts, usage.last)]

    sizes: list[int] = []
    for i in order:
        usage = usages[i]
        size = _rounded(usage.nbytes, alignment)
        taken: list[list[tuple[int, int]]] = [[] for _ in sizes]
        for j in {j for step in steps_of(usage) for j in placed.get(step, ())}:
            arena, offset = places[j]
            taken[arena].append((offset, _rounded(usages[j].nbytes, alignment)))
        gaps: list[tuple[int, int, int]] = []
        ends: list[tuple[int, int]] = []
        for arena, spans in enumerate(taken):
            end = 0
            for offset, length in sorted(spans):
                if offset - end >= size:
                    gaps.append((offset - end, arena, end))
                end = max(end, offset + length)
            if end + size <= limit:
                ends.append((arena, end))
        if gaps:
            places[i] = min(gaps)[1:]
        elif ends:
            places[i] = ends[0]
        else:
            places[i] = (len(sizes), 0)
            sizes.append(0)
        arena, offset = places[i]
        # One that only rounding takes over the limit needs none behind it.
        end = offset + (size if offset + size <= limit else usage.nbytes)
        sizes[arena] = max(sizes[arena], end)
        for step in steps_of(usage):
            placed.setdefault(step, []).append(i)
    arenas, offsets = zip(*places, strict=True) if places else ((), ())
    return Assignment(arenas, offsets, tuple(sizes), strategy)


def _rounded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
