"""The order of a plan's dispatches: by level, where those of a level need nothing of each other.

A device may run dispatches of a level at the same time, and waits once a level: a detector's heads,
or a convolution on a shortcut beside those that it goes around, cost one boundary together. In
memory that is reused, tensors of one level lie apart, so a level never waits for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tflgpu.compiler.memory import Assignment, Usage, assign
from tflgpu.compiler.plan import ArenaRef
from tflgpu.values import frozen

#: A level less may cost so much more memory: of a share of all and so many bytes.
_SHARE, _FEW_BYTES = 8, 4096


@frozen
class Touched:
    """The tensors that a dispatch reads, and those that it writes, by keys."""

    reads: Sequence[object]
    writes: Sequence[object]


@frozen
class Schedule:
    """The dispatches by level, where their tensors lie, and the sizes of the arenas."""

    levels: Sequence[Sequence[int]]
    refs: Mapping[object, ArenaRef]
    arenas: tuple[int, ...]


def schedule_of(
    dispatches: Sequence[Touched],
    nbytes: Mapping[object, int],
    alignment: int,
    limit: float = math.inf,
    *,
    search: bool = False,
) -> Schedule:
    """The schedule with the fewest levels that takes little more memory than another.

    Args:
        dispatches: In an order in which they can run.
        nbytes: Sizes of the tensors that lie in arenas.
        alignment: Every offset is a multiple of it.
        limit: Bytes of an arena at most.
        search: Whether the least memory counts, and `assign` tries more orders.
    """

    def placed(steps: Sequence[int]) -> tuple[Sequence[int], dict[object, Usage], Assignment]:
        usages: dict[object, Usage] = {}
        for step, each in sorted(zip(steps, dispatches, strict=True), key=lambda pair: pair[0]):
            for key in (*each.reads, *each.writes):
                if key in nbytes:
                    first = usages[key].first if key in usages else step
                    usages[key] = Usage(nbytes[key], first, step)
        return steps, usages, assign(list(usages.values()), alignment, limit, search=search)

    tried = [placed(steps) for steps in _orders(dispatches)]
    least = min(each[2].total for each in tried)
    most = least if search else least + least // _SHARE + _FEW_BYTES
    fitting = [each for each in tried if each[2].total <= most]
    steps, usages, assignment = min(
        fitting, key=lambda each: (max(each[0], default=0), each[2].total)
    )
    places = zip(usages.items(), assignment.offsets, assignment.arenas, strict=True)
    refs = {key: ArenaRef(offset, usage.nbytes, arena) for (key, usage), offset, arena in places}
    levels: dict[int, list[int]] = {step: [] for step in sorted(steps)}
    for i, step in enumerate(steps):
        levels[step].append(i)
    return Schedule(list(levels.values()), refs, assignment.sizes)


def _orders(dispatches: Sequence[Touched]) -> Iterator[Sequence[int]]:
    """Steps of dispatches: the earliest levels that they can have, the latest, and the given order,
    one by one."""
    needed = _needed(dispatches)
    earliest: list[int] = []
    for before in needed:
        earliest.append(max((earliest[j] + 1 for j in before), default=0))
    last = max(earliest, default=0)
    if last + 1 < len(dispatches):
        yield earliest
        latest = [last] * len(dispatches)
        for i in reversed(range(len(dispatches))):
            for j in needed[i]:
                latest[j] = min(latest[j], latest[i] - 1)
        yield latest
    yield range(len(dispatches))


def _needed(dispatches: Sequence[Touched]) -> list[set[int]]:
    """For each dispatch the earlier ones that it must come behind."""
    found: list[set[int]] = []
    writers: dict[object, set[int]] = {}
    readers: dict[object, set[int]] = {}
    for i, each in enumerate(dispatches):
        before = {j for key in each.reads for j in writers.get(key, ())}
        for key in each.writes:
            before |= writers.get(key, set()) | readers.get(key, set())
        found.append(before)
        for key in each.reads:
            readers.setdefault(key, set()).add(i)
        for key in each.writes:
            writers.setdefault(key, set()).add(i)
    return found
