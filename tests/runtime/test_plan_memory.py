"""The arena planner: no two tensors that are alive together share a byte."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tflgpu import GpuDelegate
from tflgpu.backend_kit.parallel import in_parallel
from tflgpu.backend_kit.placement import place
from tflgpu.backend_kit.run_commands import Access, Range, access_of, barriers
from tflgpu.compiler.memory import Usage, assign
from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.plans import affine, dispatch, plan
from tflgpu.contract.memory_use import CountsMemory
from tflgpu.contract.offers import KeepsCode, offers
from tflgpu.interpreter.copies import copy
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar

USAGES = st.lists(
    st.builds(
        lambda size, first, length: Usage(size, first, first + length),
        st.integers(1, 5000), st.integers(0, 20), st.integers(0, 10),
    ),
    max_size=25,
)  # fmt: skip


def lower_bound(usages: list[Usage]) -> int:
    """Bytes that no assignment can go below: those that exist at the widest step."""
    steps = {usage.first for usage in usages}
    alive = ([u.nbytes for u in usages if u.first <= step <= u.last] for step in steps)
    return max(map(sum, alive), default=0)


@given(USAGES, st.sampled_from([1, 16, 256]))
def test_tensors_alive_together_do_not_overlap(usages: list[Usage], alignment: int) -> None:
    found = assign(usages, alignment)
    spans = list(zip(usages, found.offsets, strict=True))
    for i, (usage, offset) in enumerate(spans):
        assert offset % alignment == 0
        assert offset + usage.nbytes <= found.total
        for other, other_offset in spans[:i]:
            if usage.overlaps(other):
                apart = (
                    offset + usage.nbytes <= other_offset or other_offset + other.nbytes <= offset
                )
                assert apart
    assert found.total >= lower_bound(usages)


def test_a_chain_needs_room_for_two_neighbours() -> None:
    chain = [Usage(1000, i, i + 1) for i in range(10)]
    assert assign(chain, 1).total == 2000


def test_the_smaller_of_both_strategies_is_taken() -> None:
    # By size the long-lived small tensors are placed last, between the big ones.
    usages = [Usage(1024, 0, 1), Usage(1024, 2, 3), Usage(16, 0, 3), Usage(512, 1, 2)]
    assert assign(usages, 16).total == lower_bound(usages) == 1024 + 512 + 16


def test_nothing_needs_nothing() -> None:
    assert assign([], 256).total == 0


@given(USAGES, st.sampled_from([1, 16, 256]), st.integers(500, 20_000))
def test_no_arena_is_over_the_limit(usages: list[Usage], alignment: int, limit: int) -> None:
    found = assign(usages, alignment, limit)
    places = list(zip(usages, found.arenas, found.offsets, strict=True))
    for i, (usage, arena, offset) in enumerate(places):
        assert offset % alignment == 0
        assert offset + usage.nbytes <= found.sizes[arena]
        for other, other_arena, other_offset in places[:i]:
            if usage.overlaps(other) and arena == other_arena:
                end, other_end = offset + usage.nbytes, other_offset + other.nbytes
                assert end <= other_offset or other_end <= offset
    for arena, size in enumerate(found.sizes):
        held = [u.nbytes for u, where, _ in places if where == arena]
        assert size <= limit or size == max(held) > limit or max(held) + alignment > limit
        assert held, "an arena in which nothing lies"


@given(USAGES, st.sampled_from([1, 16, 256]))
def test_a_limit_that_one_arena_keeps_changes_nothing(usages: list[Usage], alignment: int) -> None:
    one = assign(usages, alignment)
    assert len(one.sizes) == bool(usages)
    assert assign(usages, alignment, max(one.total, 1)) == one


def test_tensors_that_fit_a_buffer_each_fit_buffers_together() -> None:
    chain = [Usage(1000, i, i + 1) for i in range(10)]
    found = assign(chain, 8, 1500)
    assert found.sizes == (1000, 1000)
    assert all(a != b for a, b in itertools.pairwise(found.arenas))


def test_a_tensor_over_the_limit_has_an_arena_that_says_so() -> None:
    assert assign([Usage(5000, 0, 1), Usage(16, 0, 1)], 16, 4096).sizes == (5000, 16)


# Barriers stand between any two dispatches that must not overlap, and not where none is due.


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


# Regions of the arena -> buffers.


def steps(*pairs: tuple[Ref, Ref]) -> Plan:
    return plan([dispatch(affine(1), 1, list(pair)) for pair in pairs], arena=1024)


def test_a_chain_takes_turns_in_two_buffers() -> None:
    refs = [ArenaRef(256 * (i % 2), 100 + i) for i in range(5)]
    placement = place(
        steps((InputRef(0), refs[0]), *itertools.pairwise(refs), (refs[-1], OutputRef(0)))
    )
    assert len(placement.sizes) == 2
    assert sorted(placement.sizes) == [103, 104]
    for one, other in itertools.pairwise(refs):
        assert placement.of[one][0] != placement.of[other][0]
    assert all(offset == 0 for _, offset in placement.of.values())


def test_what_is_in_use_at_once_is_apart() -> None:
    a, b, c = (ArenaRef(256 * i, 64) for i in range(3))
    placement = place(
        steps((InputRef(0), a), (InputRef(0), b), (b, c), (a, OutputRef(0)), (c, OutputRef(1)))
    )
    assert len({placement.of[r][0] for r in (a, b, c)}) == 3


def test_a_buffer_fits_its_largest_region() -> None:
    first, second = ArenaRef(0, 64), ArenaRef(0, 128)
    placement = place(
        steps((InputRef(0), first), (first, OutputRef(0)), (InputRef(0), second),
              (second, OutputRef(0)))
    )  # fmt: skip
    assert placement.sizes == (128,)


def test_regions_over_each_other_keep_the_arena_whole() -> None:
    whole, part = ArenaRef(0, 256), ArenaRef(64, 64)
    placement = place(steps((InputRef(0), whole), (part, OutputRef(0))))
    assert placement.sizes == (1024,)
    assert placement.of == {whole: (0, 0), part: (0, 64)}


def test_no_arena() -> None:
    placement = place(steps((InputRef(0), OutputRef(0))))
    assert placement.sizes == ()
    assert placement.of == {}


# Copies agree with NumPy's, large or small, contiguous or not.


@pytest.mark.parametrize("shape", [(), (3,), (1, 257, 257, 21), (7, 1 << 20)])
def test_every_element_arrives(shape: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).random(shape, np.float32)
    target = np.zeros(shape, np.float32)
    copy(target, source)
    assert (target == source).all()


def test_strided_arrays() -> None:
    source = np.random.default_rng(0).random((2048, 2048), np.float32).T
    target = np.zeros((2048, 4096), np.float32)[:, ::2]
    copy(target, source)
    assert (target == source).all()


# What an object hands on counts as its own, in every Python.


class _Counts(Protocol):
    total: int

    @property
    def rest(self) -> int: ...


class _CountsDown(_Counts, Protocol):
    def down(self) -> None: ...


class _Down:
    total = 3
    rest = 2

    def down(self) -> None:
        """Nothing."""


class _Around:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Half:
    total = 3


@pytest.mark.parametrize("protocol", [_Counts, _CountsDown])
def test_what_is_handed_on_is_offered(protocol: type) -> None:
    assert offers(_Down(), protocol)
    assert offers(_Around(_Around(_Down())), protocol)
    assert not offers(_Half(), protocol)
    assert not offers(_Around(_Half()), protocol)
    assert not offers(None, protocol)


def test_isinstance_is_not_for_what_may_be_handed_on() -> None:
    # From Python 3.12 on it would find nothing, in silence.
    with pytest.raises(TypeError):
        isinstance(_Down(), KeepsCode)  # type: ignore[misc]


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_a_delegates_device_counts_memory_and_keeps_code(backend: str) -> None:
    with GpuDelegate(backend=backend, allow_fallback=False) as delegate:
        assert offers(delegate.device, CountsMemory)
        assert offers(delegate.device, KeepsCode)


# Work that begins while what it works on is still being made.


def test_work_begins_before_all_items_are_there() -> None:
    begun = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert begun.wait(10), "the first item waits for the second"
        yield 1

    def work(item: int) -> int:
        begun.set()
        return item * 2

    assert in_parallel("test", work, items()) == [0, 2]


def test_what_making_an_item_raises_comes_after_the_work_that_has_begun() -> None:
    done: list[int] = []

    def items() -> Iterator[int]:
        yield 0
        raise ValueError("no second item")

    with pytest.raises(ValueError, match="no second item"):
        in_parallel("test", done.append, items())
    before = list(done)
    assert before in ([], [0])
    assert not [t for t in threading.enumerate() if t.name.startswith("test_")]


def test_what_a_call_raises_comes_through() -> None:
    def work(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 3"):
        in_parallel("test", work, [3, 4])
