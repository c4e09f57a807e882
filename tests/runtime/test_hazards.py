"""Barriers stand between any two dispatches that must not overlap, and not where none is due."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tflgpu.backend_kit.hazards import Access, Range, access_of, barriers
from tflgpu.compiler.plan import ArenaRef, ConstRef
from tflgpu.conformance.plans import dispatch
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar


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


def test_a_buffer_that_is_read_and_written_is_both() -> None:
    k = Builder("adds", (1, 1, 1))
    both = k.buffer("both", Scalar.F32, 1, "read_write")
    terms = [k.buffer(name, Scalar.F32, 1, "read") for name in ("read", "constant")]
    k.store(both, 0, k.load(both, 0) + k.load(terms[0], 0) + k.load(terms[1], 0))
    refs = [ArenaRef(0, 10), ArenaRef(10, 10), ConstRef(0)]
    found = access_of(dispatch(k.build(), 1, refs), [A, B, C])
    assert found == Access((A, B), (A,))


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
