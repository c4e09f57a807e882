"""Offsets for tensors that share one arena, from their lifetimes.

Two greedy strategies, as in the literature on memory planning for inference (Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020): largest tensor first, and
widest step first. Neither always wins, so both are computed and the smaller arena is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs


@attrs.frozen
class Usage:
    """A tensor that must exist from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Usage) -> bool:
        """Whether both exist at some step."""
        return self.first <= other.last and other.first <= self.last


@attrs.frozen
class Assignment:
    """Offsets aligned with the usages given, and the arena's size, in bytes."""

    offsets: tuple[int, ...]
    total: int
    strategy: str


def assign(usages: Sequence[Usage], alignment: int) -> Assignment:
    """The smaller of both strategies' arenas; every offset is a multiple of ``alignment``."""
    plans = (
        _place(usages, _by_size(usages), alignment, "greedy by size"),
        _place(usages, _by_breadth(usages), alignment, "greedy by breadth"),
    )
    return min(plans, key=lambda plan: plan.total)


def lower_bound(usages: Sequence[Usage]) -> int:
    """Bytes that no assignment can go below: the widest step."""
    return max((sum(u.nbytes for u in step) for step in _steps(usages).values()), default=0)


def _steps(usages: Sequence[Usage]) -> dict[int, list[Usage]]:
    # Breadth only changes where a tensor begins, so those steps are all that matter.
    return {u.first: [v for v in usages if v.first <= u.first <= v.last] for u in usages}


def _by_size(usages: Sequence[Usage]) -> list[int]:
    return sorted(range(len(usages)), key=lambda i: (-usages[i].nbytes, usages[i].first))


def _by_breadth(usages: Sequence[Usage]) -> list[int]:
    index = {id(u): i for i, u in enumerate(usages)}
    order: list[int] = []
    seen: set[int] = set()
    steps = sorted(_steps(usages).items(), key=lambda s: (-sum(u.nbytes for u in s[1]), s[0]))
    for _, alive in steps:
        for usage in sorted(alive, key=lambda u: -u.nbytes):
            i = index[id(usage)]
            if i not in seen:
                seen.add(i)
                order.append(i)
    return order


def _place(
    usages: Sequence[Usage], order: Iterable[int], alignment: int, strategy: str
) -> Assignment:
    """Give each tensor, in order, the smallest gap among those alive with it that it fits."""
    offsets = [0] * len(usages)
    placed: list[int] = []
    total = 0
    for i in order:
        usage = usages[i]
        size = -(-usage.nbytes // alignment) * alignment
        taken = sorted(
            (offsets[j], -(-usages[j].nbytes // alignment) * alignment)
            for j in placed
            if usages[j].overlaps(usage)
        )
        best: int | None = None
        best_gap = 0
        end = 0
        for offset, length in taken:
            gap = offset - end
            if gap >= size and (best is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, offset + length)
        offsets[i] = end if best is None else best
        placed.append(i)
        total = max(total, offsets[i] + size)
    return Assignment(tuple(offsets), total, strategy)
