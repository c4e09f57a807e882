"""The times of a run's copies, by runs with and without buffers of the device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import UnsupportedError
from tflgpu.tools import copy_times as module
from tflgpu.tools.copy_times import copy_times

from tests.running import allocated, raising, set_and_run
from tests.small_models import small_model


class FakeRuns:
    """An interpreter of one input, 0, and one output, 1, that a run copies in 3 and 2 ms."""

    def __init__(self, noise: float) -> None:
        self.bound: set[int] = set()
        self.closed = 0
        self.noise: Iterator[float] = cycle((-noise, 0.0, noise))

    def get_output_details(self) -> list[dict[str, Any]]:
        return [{"index": 1}]

    def allocate_buffer(self, index: int) -> Any:
        return self

    def __enter__(self) -> FakeRuns:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self.bound
        self.closed += 1

    def write(self, array: np.ndarray) -> None:
        assert array.shape == (2,)

    def bind_input(self, index: int, buffer: object) -> None:
        assert index == 0
        self.bound.add(index)

    def bind_output(self, index: int, buffer: object) -> None:
        assert index == 1
        self.bound.add(index)

    def unbind(self, index: int) -> None:
        self.bound.discard(index)

    def seconds(self) -> float:
        return 0.01 - sum({0: 0.003, 1: 0.002}[i] for i in self.bound) + next(self.noise)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_timed", lambda runs: runs.seconds())
    return FakeRuns


INPUTS = {0: np.zeros(2, np.float32)}


def test_a_copy_is_what_a_run_takes_less(fake: Any) -> None:
    runs = fake(1e-4)
    found = copy_times(runs, INPUTS, (8, 8))
    assert found.upload == pytest.approx(3)
    assert found.download == pytest.approx(2)
    assert found.reason == ""
    assert runs.closed == 2


def test_what_is_less_than_the_noise_is_not_told(fake: Any) -> None:
    found = copy_times(fake(1.2e-3), INPUTS, (8, 8))
    assert found.upload == pytest.approx(3)
    assert found.download is None
    assert found.reason.startswith("download: less than the runs differ by (2.400 ms)")
    one = copy_times(fake(1e-4), INPUTS, (8, 0))
    assert (one.download, one.reason) == (None, "download: nothing is copied")


def test_what_cannot_be_bound_is_said(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeRuns, "allocate_buffer", raising(UnsupportedError("there is no device"))
    )
    found = copy_times(fake(1e-4), INPUTS, (8, 8))
    assert (found.upload, found.reason) == (None, "there is no device")


def test_nothing_stays_bound() -> None:
    content = small_model(dict.fromkeys("xy", (2, 3)), "y = TANH(x)")
    x = np.random.default_rng(1).random((2, 3), np.float32)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        set_and_run(interpreter, {0: x})
        before = interpreter.get_tensor(1)
        found = copy_times(interpreter, {0: x}, (24, 24))
        for milliseconds in (found.upload, found.download):
            assert milliseconds is None or milliseconds > 0
        set_and_run(interpreter, {0: x})
        np.testing.assert_array_equal(interpreter.get_tensor(1), before)
