"""Barriers stand between any two dispatches that must not overlap, and not where none is due."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("vulkan", reason="pip install tflgpu[vulkan]")
try:
    from tflgpu_vulkan.barriers import Access, Range, barriers
except OSError as error:
    pytest.skip(f"the Vulkan loader: {error}", allow_module_level=True)


def one(reads: list[Range], writes: list[Range]) -> Access:
    return Access(tuple(reads), tuple(writes))


A, B, C = (0, 0, 10), (0, 10, 20), (0, 20, 30)


@pytest.mark.parametrize(
    ("first", "second", "needed"),
    [
        (one([], [A]), one([A], [B]), True),  # read after write
        (one([A], [B]), one([], [A]), True),  # write after read
        (one([], [A]), one([], [A]), True),  # write after write
        (one([A], [B]), one([A], [C]), False),  # two that read
        (one([A], [B]), one([], [C]), False),
        (one([], [(0, 0, 11)]), one([B], [C]), True),  # by one byte
        (one([], [A]), one([(1, 0, 10)], [B]), False),  # other memory
        (one([], [(0, 0, 0)]), one([A], [B]), False),  # no bytes
    ],
)
def test_pairs(first: Access, second: Access, needed: bool) -> None:
    assert barriers([first, second]) == [False, needed]


def test_branches_share_one_barrier() -> None:
    trunk = one([], [A])
    heads = [one([A], [(0, 100 + i, 101 + i)]) for i in range(5)]
    joined = one([(0, 100, 105)], [B])
    assert barriers([trunk, *heads, joined]) == [False, True, False, False, False, False, True]


def test_nothing_that_conflicts_is_without_a_barrier() -> None:
    rng = random.Random(3)

    def span() -> Range:
        start = rng.randrange(12)
        return rng.randrange(2), start, start + rng.randrange(4)

    for _ in range(300):
        accesses = [
            one(
                [span() for _ in range(rng.randrange(3))], [span() for _ in range(rng.randrange(3))]
            )
            for _ in range(8)
        ]
        found = barriers(accesses)
        assert len(found) == len(accesses)
        for j in range(len(accesses)):
            for i in range(j):
                assert any(found[i + 1 : j + 1]) or not conflict(accesses[i], accesses[j])


def conflict(first: Access, second: Access) -> bool:
    def bytes_of(ranges: Any) -> set[tuple[int, int]]:
        return {(memory, at) for memory, start, end in ranges for at in range(start, end)}

    reads, writes = bytes_of(first.reads), bytes_of(first.writes)
    return bool(
        writes & (bytes_of(second.reads) | bytes_of(second.writes))
        or reads & bytes_of(second.writes)
    )


def test_a_chain_is_recorded_with_its_barriers(open_device: Any, monkeypatch: Any) -> None:
    from tflgpu.compiler.plan import InputRef, OutputRef
    from tflgpu.conformance.plans import affine, chain, dispatch, io, plan
    from tflgpu_vulkan import record

    counted: list[Any] = []
    original = record.dispatch_barrier
    monkeypatch.setattr(
        record, "dispatch_barrier", lambda buffer: (counted.append(buffer), original(buffer))
    )
    device = open_device()
    device.load(chain(64, device.alignment, steps=5))
    assert len(counted) == 4
    counted.clear()
    apart = [dispatch(affine(8), 8, [InputRef(0), OutputRef(i)]) for i in range(5)]
    device.load(plan(apart, [io("x", (8,))], [io(f"y{i}", (8,)) for i in range(5)]))
    assert not counted
