"""Small runs between those of models, where `keep_warm` asks for them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError
from tflgpu.runtime import keep_warm
from tflgpu.runtime.keep_warm import Warmth

from tests.running import raising
from tests.small_models import small_model


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done with small recordings; a device is a name here."""
    done: list[str] = []

    def load(device: Any) -> Any:
        done.append(f"load on {device}")
        return SimpleNamespace(
            run=lambda: done.append("run"), close=lambda: done.append(f"close on {device}")
        )

    monkeypatch.setattr(keep_warm, "small_recording", load)
    return done


def ticks(warmth: Warmth, *moments: tuple[Any, int, float]) -> None:
    for device, runs, now in moments:
        warmth.tick(device, runs, now)


def test_for_so_long_after_the_last_run(made: list[str]) -> None:
    warmth = Warmth(10.0)
    ticks(warmth, ("a", 0, 100.0))
    assert made == []  # nothing ran yet
    ticks(warmth, ("a", 3, 101.0), ("a", 5, 102.0))
    assert made == []  # the models keep it warm themselves
    ticks(warmth, ("a", 5, 103.0), ("a", 5, 111.9), ("a", 5, 112.0), ("a", 5, 500.0))
    assert made == ["load on a", "run", "run"]
    ticks(warmth, ("a", 6, 501.0), ("a", 6, 502.0))
    assert made == ["load on a", "run", "run", "run"]
    warmth.close()
    warmth.close()
    assert made[4:] == ["close on a"]


def test_a_model_that_is_closed_is_no_run(made: list[str]) -> None:
    ticks(warmth := Warmth(10.0), ("a", 7, 0.0), ("a", 2, 9.0), ("a", 2, 11.0))
    assert made == ["load on a", "run"]
    warmth.close()


def test_on_a_device_that_was_opened_anew(made: list[str]) -> None:
    warmth = Warmth(10.0)
    ticks(warmth, ("a", 1, 0.0), ("a", 1, 1.0), ("b", 1, 2.0))
    assert made == ["load on a", "run", "close on a", "load on b", "run"]


def test_an_error_ends_it_until_the_next_run(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warmth = Warmth(10.0)
    with monkeypatch.context() as patch:
        patch.setattr(keep_warm, "small_recording", raising(DeviceError("lost")))
        ticks(warmth, ("a", 1, 0.0), ("a", 1, 1.0), ("a", 1, 2.0))
    ticks(warmth, ("a", 1, 3.0))
    assert made == []
    ticks(warmth, ("a", 2, 4.0), ("a", 2, 5.0))
    assert made == ["load on a", "run"]


def test_a_delegate_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread runs until the delegate is closed, and sees the runs of models."""
    seen = threading.Event()
    counts: list[int] = []

    def tick(self: Warmth, device: Any, runs: int, now: float) -> None:
        counts.append(runs)
        if runs:
            seen.set()

    monkeypatch.setattr(Warmth, "tick", tick)
    monkeypatch.setattr(keep_warm, "_EVERY", 1e-3)
    model = small_model({"x": (1, 3), "y": (1, 3)}, "y = NEG(x)")
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, keep_warm=60) as delegate,
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.ones((1, 3), np.float32))
        interpreter.invoke()
        assert seen.wait(60)
        (thread,) = [t for t in threading.enumerate() if t.name == "tflgpu-warm"]
    assert not thread.is_alive()
    assert set(counts) <= {0, 1}


def test_small_runs_of_a_real_device() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        device: Any = delegate.device
        before = device.memory.total
        warmth = Warmth(10.0)
        ticks(warmth, (device, 1, 0.0), (device, 1, 1.0))
        assert device.memory.total > before
        warmth.close()
        assert device.memory.total == before


def test_none_without_it() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1):
        assert not [t for t in threading.enumerate() if t.name == "tflgpu-warm"]
    with pytest.raises(tflgpu.OptionError, match="keep_warm is a number of seconds above 0"):
        tflgpu.GpuDelegate(backend="cpu_ref", keep_warm=0)
