"""The arena planner: no two tensors that are alive together share a byte."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tflgpu.compiler.memory import Usage, assign

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
