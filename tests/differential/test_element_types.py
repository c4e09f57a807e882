"""The walk over element types, of a few operators; ``python -m tests.differential.element_types``
is all of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
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

ROOT = Path(__file__).parents[2]


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


#: An operator, one of its models, and whether LiteRT leaves a part of the result unwritten.
IN_MEMORY = [
    ("GATHER", "rows f32->i4", True), ("BROADCAST_TO", "rank_up f32->u4", True),
    ("NOT_EQUAL", "i32_same i32->i16", True), ("GATHER", "rows f32->i8", False),
]  # fmt: skip


def write_results(path: str) -> None:
    """In a child: what LiteRT gives for all of these."""
    found = [each_in_child(by_litert, [model(op, label)])[0] for op, label, _ in IN_MEMORY]
    Path(path).write_bytes(pickle.dumps(found))


@pytest.fixture(scope="module")
def by_memory(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """These results, in processes whose fresh memory is full of a number. (glibc's caches of
    threads, which hand out blocks as they are, are off.)"""
    found = []
    for byte in (0, 0x55, 0xA7):
        path = tmp_path_factory.mktemp("results") / "found"
        tunables = f"glibc.malloc.tcache_count=0:glibc.malloc.perturb={byte}"
        script = (
            f"from tests.differential.test_element_types import *; write_results({str(path)!r})"
        )
        subprocess.run(
            [sys.executable, "-c", script], check=True, cwd=ROOT, timeout=120,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
        )  # fmt: skip
        found.append(pickle.loads(path.read_bytes()))
    return found


@pytest.mark.parametrize("number", range(len(IN_MEMORY)), ids=lambda n: IN_MEMORY[n][1])
def test_a_result_that_means_nothing_is_another_in_other_memory(
    number: int, by_memory: list[list[Any]]
) -> None:
    op, label, varies = IN_MEMORY[number]
    entries = [u for u in UNDEFINED if any(u.covers(op, label, h) for h in (REFUSED, DEFINED))]
    assert [u.varies for u in entries] == [True] * varies
    found = [results[number] for results in by_memory]
    assert all(not isinstance(each, str) for each in found)
    same = all(np.array_equal(found[0][0], each[0]) for each in found)
    assert same is not varies
