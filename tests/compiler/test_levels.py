"""Orders of dispatches by level: dependencies, memory, and the barriers that are left."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tflgpu.backend_kit.run_commands import Access, Range, barriers
from tflgpu.compiler.levels import Schedule, Touched, schedule_of
from tflgpu.compiler.memory import Usage, assign


def order_of(schedule: Schedule) -> list[int]:
    return [i for level in schedule.levels for i in level]


def accesses(schedule: Schedule, dispatches: Sequence[Touched]) -> list[Access]:
    """What the dispatches read and write, in the schedule's order."""

    def ranges(keys: Sequence[object]) -> tuple[Range, ...]:
        refs = [schedule.refs[key] for key in keys]
        return tuple((r.arena, r.offset, r.offset + r.nbytes) for r in refs)

    each = (dispatches[i] for i in order_of(schedule))
    return [Access(ranges(d.reads), ranges(d.writes)) for d in each]


def in_order(dispatches: Sequence[Touched], nbytes: dict[object, int]) -> int:
    """Bytes of the arenas where dispatches stay in the given order."""
    spans: dict[object, list[int]] = {}
    for step, each in enumerate(dispatches):
        for key in (*each.reads, *each.writes):
            spans.setdefault(key, []).append(step)
    return assign([Usage(nbytes[k], min(s), max(s)) for k, s in spans.items()], 16).total


def test_two_branches_in_turn_wait_once_a_level() -> None:
    # a -> b0 -> b1 -> b2 and a -> c0 -> c1 -> c2, one branch behind the other
    rows = [("a",), *[(f"{x}{i}",) for x in "bc" for i in range(3)]]
    sources = {"b0": "a", "b1": "b0", "b2": "b1", "c0": "a", "c1": "c0", "c2": "c1"}
    dispatches = [Touched([sources[k]] if k in sources else [], [k]) for (k,) in rows]
    nbytes: dict[object, int] = dict.fromkeys((k for (k,) in rows), 64)
    nbytes["a"] = 1024
    found = schedule_of(dispatches, nbytes, 16)
    assert found.levels == [[0], [1, 4], [2, 5], [3, 6]]
    assert barriers(accesses(found, dispatches)) == [False, True, False, True, False, True, False]


def test_a_chain_stays() -> None:
    dispatches = [Touched([i - 1] if i else [], [i]) for i in range(9)]
    found = schedule_of(dispatches, dict.fromkeys(range(9), 100), 16)
    assert order_of(found) == list(range(9))
    assert sum(found.arenas) == 2 * 112


def test_levels_that_take_more_memory_are_not_taken() -> None:
    # Sixteen large tensors, each of which is summed up at once: side by side they would all exist.
    dispatches = []
    for i in range(16):
        dispatches += [Touched([], [("large", i)]), Touched([("large", i)], [("small", i)])]
    dispatches.append(Touched([("small", i) for i in range(16)], ["sum"]))
    nbytes: dict[object, int] = {("large", i): 4096 for i in range(16)}
    nbytes |= {("small", i): 16 for i in range(16)} | {"sum": 16}
    found = schedule_of(dispatches, nbytes, 16)
    assert order_of(found) == list(range(33))
    assert sum(found.arenas) < 2 * 4096


def test_few_bytes_more_are_a_level_less() -> None:
    """Two pairs: a tensor of the one would lie where one of the other did."""
    dispatches = [Touched([], ["a"]), Touched(["a"], ["x"]), Touched([], ["b"])]
    dispatches += [Touched(["b"], ["y"]), Touched(["x", "y"], ["z"])]
    nbytes: dict[object, int] = {"a": 1600, "b": 1600, "x": 16, "y": 16, "z": 16}
    assert schedule_of(dispatches, nbytes, 16).levels == [[0, 2], [1, 3], [4]]
    least = schedule_of(dispatches, nbytes, 16, search=True)
    assert least.levels == [[0], [1], [2], [3], [4]]
    more = {key: 100 * n for key, n in nbytes.items()}
    assert schedule_of(dispatches, more, 16).levels == least.levels


@pytest.mark.parametrize("seed", range(40))
def test_what_needs_another_comes_behind_it(seed: int) -> None:
    """Random graphs whose tensors are written, read, and sometimes written again."""
    random = Random(seed)
    dispatches: list[Touched] = []
    for i in range(random.randint(2, 24)):
        known = [key for d in dispatches for key in d.writes]
        reads = random.sample(known, min(len(known), random.randint(0, 2)))
        again = bool(known) and random.random() < 0.2
        dispatches.append(Touched(reads, [random.choice(known) if again else i]))
    nbytes: dict[object, int] = {}
    for each in dispatches:
        for key in each.writes:
            nbytes.setdefault(key, random.randint(1, 400))
    search = seed % 2 > 0
    found = schedule_of(dispatches, nbytes, 16, search=search)
    assert sorted(order_of(found)) == list(range(len(dispatches)))
    place = {i: at for at, level in enumerate(found.levels) for i in level}
    for i, later in enumerate(dispatches):
        for j, earlier in enumerate(dispatches[:i]):
            mine, its = (
                (set(later.reads), set(later.writes)),
                (set(earlier.reads), set(earlier.writes)),
            )
            if mine[1] & (its[0] | its[1]) or mine[0] & its[1]:
                assert place[j] < place[i]
    least = in_order(dispatches, nbytes)
    assert sum(found.arenas) <= (least if search else least * 9 // 8 + 4096)
    # What lives at the same time lies apart.
    spans: dict[object, list[int]] = {}
    for at, i in enumerate(order_of(found)):
        for key in (*dispatches[i].reads, *dispatches[i].writes):
            spans.setdefault(key, []).append(at)
    for a, b in ((a, b) for a in spans for b in spans if a is not b):
        if min(spans[a]) <= max(spans[b]) and min(spans[b]) <= max(spans[a]):
            x, y = found.refs[a], found.refs[b]
            assert x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset
