"""Forks, signals and failing drivers, each in a child of its own, on every API that is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("child.py")
BACKENDS = ("opencl", "vulkan", "wgpu")
#: Seconds for a child; far more than it takes on a machine with other work to do.
LIMIT = 180

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(params=BACKENDS)
def ran(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Iterator[Any]:
    """``ran(what)``: what a child said, on each backend."""
    require_backend(request.param)

    def run(what: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(CHILD), what, request.param],
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        assert not done.returncode, f"status {done.returncode}: {done.stderr[-3000:]}"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    run.backend = request.param  # type: ignore[attr-defined]
    yield run


def test_forks(ran: Any) -> None:
    said = {line.pop("pattern"): line for line in ran("forks")}
    assert said["exit"] == said["close"] == {"status": 3, "said": "done"}
    assert said["use"]["status"] == 3
    answers = json.loads(said["use"]["said"].removeprefix("ValueError: "))
    assert len(answers) == 8
    for use, answer in answers.items():
        assert answer.startswith("StateError"), (use, answer)
        assert "forked" in answer, (use, answer)
    assert said["own"]["status"] == 3
    if said["own"]["said"] != "done":
        # A driver that cannot be used in a child says so, and what can be done.
        assert said["own"]["said"].startswith("DeviceError"), said["own"]
        assert "spawn" in said["own"]["said"]
        assert ran.backend == "opencl", said["own"]
    assert said["any"] == {"status": 3, "said": "done"}
    assert said["multiprocessing"]["status"] == 5
    assert said["threads"]["ends"] == [3, 3, 3]
    assert "parent" in said


def test_signals_in_runs(ran: Any) -> None:
    said = ran("signals")
    assert said[0]["came"] >= 15
    assert said[-1] == {"closed": True}


def test_signals_while_compiling(ran: Any) -> None:
    assert ran("compiles")[0]["came"] >= 5


def test_a_signal_in_a_long_run_gets_through(ran: Any) -> None:
    said = ran("long_run")
    assert said[0]["error"] == "KeyboardInterrupt", said
    assert said[0]["late"] < 1.0
    assert said[1]["closed"]
