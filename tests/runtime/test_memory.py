"""The arena planner: no two tensors that are alive together share a byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tflgpu.runtime.memory import Usage, assign, lower_bound

USAGES = st.lists(
    st.builds(
        lambda size, first, length: Usage(size, first, first + length),
        st.integers(1, 5000), st.integers(0, 20), st.integers(0, 10),
    ),
    max_size=25,
)  # fmt: skip


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
