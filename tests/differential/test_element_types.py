"""The walk over element types, of a few operators; ``python -m tests.differential.element_types``
is all of it."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.ops.registry import builtin_ops

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

from tests.differential.element_types import (
    WRONG,
    Model,
    Outcome,
    by_litert,
    each_in_child,
    models_of,
    walk,
)
from tests.differential.undefined import DEFINED, REFUSED, UNDEFINED

_M_PERTURB = -6  # mallopt(3)
#: The largest blocks in a thread's cache of glibc's, and how many of each size (mallopt(3),
#: tcache).
_CACHED, _EACH = 1040, 7


@pytest.mark.parametrize(
    ("op", "entries"),
    [("SPLIT", 1), ("BITCAST", 2), ("GATHER", 1), ("NOT_EQUAL", 1), ("PAD", 0)],
)
def test_what_litert_runs_is_the_same_here_or_means_nothing(op: str, entries: int) -> None:
    fares = list(walk(f"^{op}$"))
    counts = Counter(each.outcome for each in fares)
    wrong = [(each.label, each.why) for each in fares if each.outcome in WRONG]
    if op == "BITCAST":  # a graph has no bits of bf16
        assert {label.split("->")[1] for label, _ in wrong} == {"bf16"}
    else:
        assert not wrong
    assert counts[Outcome.SAME] >= 5
    used = {each.entry for each in fares} - {None}
    assert len(used) == entries


def model(op: str, label: str) -> Model:
    return next(m for name, m in models_of(builtin_ops()[op]) if name == label)


def in_memory_of(byte: int) -> Callable[..., Any]:
    """As `by_litert`, in a process whose fresh memory is full of a number."""

    def run(*given: Any) -> Any:
        library = ctypes.CDLL(None)
        library.mallopt(_M_PERTURB, byte)
        # glibc fills no block that its cache of a thread hands out: have that be empty.
        for nbytes in range(16, _CACHED + 1, 16):
            for _ in range(_EACH):
                library.malloc(ctypes.c_size_t(nbytes))
        return by_litert(*given)

    return run


@pytest.mark.parametrize(
    ("op", "label", "varies"),
    [("GATHER", "rows f32->i4", True), ("BROADCAST_TO", "rank_up f32->u4", True),
     ("NOT_EQUAL", "i32_same i32->i16", True), ("GATHER", "rows f32->i8", False)],
)  # fmt: skip
def test_a_result_that_means_nothing_is_another_in_other_memory(
    op: str, label: str, varies: bool
) -> None:
    entries = [u for u in UNDEFINED if any(u.covers(op, label, h) for h in (REFUSED, DEFINED))]
    assert [u.varies for u in entries] == [True] * varies
    found = [each_in_child(in_memory_of(n), [model(op, label)])[0] for n in (0, 0x55, 0xA7)]
    assert all(not isinstance(each, str) for each in found)
    same = all(np.array_equal(found[0][0], each[0]) for each in found)
    assert same is not varies
