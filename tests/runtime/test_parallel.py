"""Work that begins while what it works on is still being made."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tflgpu.backend_kit.parallel import in_parallel


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
