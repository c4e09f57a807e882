"""Which lanes of a buffer each workgroup may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.language.builder import Builder
from tflgpu.language.index_range import BEYOND, written
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar


def by_rows(k: Builder, dst: Any, one: Any) -> None:
    i = k.let(k.global_id(0), "i")
    with k.if_(i < 100):
        k.store(dst, (i // 6) * 7 + i % 6, one)


def by_tiles(k: Builder, dst: Any, one: Any) -> None:
    first = k.let(k.group_id(1) * 4, "first")
    with k.loop(0, 4) as j:
        row = k.let(k.min(first + j, 11), "row")
        k.store(dst, row * 64 + k.global_id(0), one)


def two_results(k: Builder, dst: Any, one: Any) -> None:
    column = k.let(k.global_id(0), "column")
    with k.if_(column >= 32):
        k.store(dst, k.group_id(1) * 10 + (column - 32) % 10, one)
    with k.else_():
        k.store(dst, k.i32(900) + k.group_id(1), one)


def chosen(k: Builder, dst: Any, one: Any) -> None:
    place = k.select((k.local_id(0) < 5) | (k.local_id(0) > 9), k.group_id(0) * 20, 7)
    k.store(dst, k.max(place, k.local_id(0) - 3), one)


def of_data(k: Builder, dst: Any, one: Any) -> None:
    found = k.var(k.i32(3), "found")
    k.set(found, found + k.local_id(0))
    k.store(dst, found, one)


CASES: list[tuple[Callable[..., None], tuple[int, int, int], bool]] = [
    (by_rows, (7, 1, 1), True),
    (by_tiles, (4, 3, 1), True),
    (two_results, (4, 5, 1), True),
    (chosen, (6, 1, 1), True),
    (of_data, (3, 1, 1), False),
]


@pytest.mark.parametrize(
    ("write", "groups", "known"), CASES, ids=lambda x: getattr(x, "__name__", "")
)
def test_no_workgroup_writes_elsewhere(
    write: Callable[..., None], groups: tuple[int, int, int], known: bool
) -> None:
    """The interpreter tells what each one writes, launched as if alone: by what it leaves."""
    k = Builder("test", (16, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    write(k, dst, k.f32(1.0, 4))
    kernel = k.build()
    ranges = written(kernel, groups, dst)
    assert ranges
    seen = np.zeros(4 * 1024, np.float32)
    interpret(kernel, groups, [seen], races=False)
    may = np.zeros(len(seen), np.bool_)
    for least, most in ranges:
        assert len(least) == len(most) == np.prod(groups)
        for low, high in zip(least, most, strict=True):
            may[max(low, 0) : max(high + 1, 0)] |= low < BEYOND
    assert seen.any()
    assert not (seen.astype(np.bool_) & ~may).any()
    assert may.all() != known


def test_what_is_known_is_exact() -> None:
    k = Builder("test", (16, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    by_tiles(k, dst, k.f32(1.0, 4))
    ((least, most),) = written(k.build(), (2, 3, 1), dst)
    assert [*least // 4] == [0, 16, 256, 272, 512, 528]
    assert [*most // 4] == [3 * 64 + 15, 3 * 64 + 31, 7 * 64 + 15, 7 * 64 + 31, 719, 735]


def test_a_store_that_a_workgroup_does_not_get_to() -> None:
    k = Builder("test", (16, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    two_results(k, dst, k.f32(1.0, 4))
    found = written(k.build(), (4, 2, 1), dst)
    there = [[*(least < BEYOND)] for least, _ in found]
    assert sorted(there) == [[False, False, True, True] * 2, [True, True, False, False] * 2]
