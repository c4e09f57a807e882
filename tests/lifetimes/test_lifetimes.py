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
from tflgpu.errors import DeviceError

from tests.lifetimes import child
from tests.running import allocated

CHILD = Path(__file__).with_name("child.py")
BACKENDS = ("opencl", "vulkan", "wgpu")
#: Seconds for a child; far more than it takes on a machine with other work to do.
LIMIT = 180 + 20 * child.WANTED

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
        # A driver that cannot be used in a child says so, and what can be done. Mesa's can.
        assert said["own"]["said"].startswith("DeviceError"), said["own"]
        assert "spawn" in said["own"]["said"]
        assert "llvmpipe" not in said["parent"]["device"], said["own"]
    assert said["any"] == {"status": 3, "said": "done"}
    assert said["multiprocessing"]["status"] == 5
    assert said["threads"]["ends"] == [3, 3, 3]


@pytest.mark.timeout(LIMIT + 60)
def test_signals_and_closing(ran: Any) -> None:
    """What is closed or dropped in use; signals in short runs, while models are prepared, and in
    a run of seconds. ``TFLGPU_SIGNALS=20`` in the environment has 20 of them come in each."""
    said = {line.pop("pattern"): line for line in ran("signals")}
    for which in ("interpreter", "delegate"):
        told = said[f"close {which}"]["told"]
        assert told, which
        for text in told:  # whoever comes too late is told what was closed, or who uses it
            assert "closed" in text or "another thread is using" in text, told
    assert said["drop"]["came"]
    for where in ("runs", "compiling"):
        print(where, said[where])  # `pytest -rP` shows it
        assert said[where]["came"] >= child.WANTED
    assert said["runs"]["came"] >= said["runs"]["turns"] * 0.7
    assert said["compiling"]["came"] >= said["compiling"]["turns"] * 0.25
    long = said["long"]
    if long["error"] == "none":
        assert long["seconds"] < child.SENT, long  # else the signal was swallowed
        pytest.skip(f"this device is too fast for a long run: {long}")
    assert long["error"] == "KeyboardInterrupt", long
    assert long["late"] < 1.0, long


@pytest.mark.parametrize("where", ["every device", "this API"])
@pytest.mark.needs("opencl")
def test_a_child_whose_driver_refuses_uses_what_is_left(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delegate that may choose goes on, and says why; one that was told to use an API fails."""
    import tflgpu
    from tflgpu.backend_kit.forks import REMEDY
    from tflgpu.plugins.registry import Registry, registry

    monkeypatch.delenv("TFLGPU_BACKEND", raising=False)
    opens = Registry.open_device

    def refuse(self: Registry, backend: str, *rest: Any) -> Any:
        if where == "every device" or backend == "opencl":
            raise DeviceError("opening it: INITIALIZATION_FAILED")
        return opens(self, backend, *rest)

    monkeypatch.setattr(Registry, "open_device", refuse)
    monkeypatch.setattr(registry(), "used_before_fork", frozenset(registry().backends))
    with pytest.raises(DeviceError, match="spawn"):
        tflgpu.GpuDelegate(backend="opencl")
    with tflgpu.GpuDelegate() as delegate:
        reasons = [reason for reason in delegate.choice.reasons if "opencl" in reason]
        assert any("INITIALIZATION_FAILED" in r and REMEDY in r for r in reasons), reasons
        if where == "every device":
            assert delegate.device is None
        elif delegate.device is not None:
            assert delegate.device.info.backend != "opencl"
        interpreter = allocated(
            tflgpu.Interpreter(model_content=child.model(), experimental_delegates=[delegate])
        )
        child.check(interpreter)
        interpreter.close()
