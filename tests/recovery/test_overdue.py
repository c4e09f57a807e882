"""A device that does not come to the end of a run: an error of ours in time, and what follows."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import waiting
from tflgpu.checks import overdue as given_up
from tflgpu.errors import RunTimeoutError

from tests.recovery import recovery_models as models
from tests.recovery.recovery_models import step
from tests.running import allocated

SECONDS = 0.2
RECORDINGS = {
    "opencl": ("tflgpu_opencl.recording", "OpenCLRecording"),
    "vulkan": ("tflgpu_vulkan.recording", "VulkanRecording"),
    "wgpu": ("tflgpu_wgpu.recording", "WgpuRecording"),
}


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the devices of a backend not come to an end, as long as ``stuck`` is not empty. Only
    then a clock goes on by which runs take too long: others do not, however busy this machine is.
    """
    stuck: list[bool] = []
    seconds = time.perf_counter
    clock = SimpleNamespace(perf_counter=lambda: seconds() if stuck else 0.0, sleep=time.sleep)
    monkeypatch.setattr(waiting, "time", clock)

    def patch(backend: str) -> list[bool]:
        module, name = RECORDINGS[backend]
        kind: Any = getattr(importlib.import_module(module), name)
        is_over, is_idle = kind._is_over, kind._is_idle
        monkeypatch.setattr(kind, "_is_over", lambda self: not stuck and is_over(self))
        monkeypatch.setattr(kind, "_is_idle", lambda self: not stuck and is_idle(self))
        return stuck

    return patch


@pytest.mark.parametrize("wait", ["passive", "active"])
@pytest.mark.parametrize("backend", RECORDINGS)
def test_a_run_that_takes_too_long(backend: str, wait: str, hangs: Any) -> None:
    stuck = hangs(backend)
    with tflgpu.GpuDelegate(backend=backend, run_timeout=SECONDS, wait_type=wait) as delegate:
        interpreter = tflgpu.Interpreter(
            model_content=models.keeps_state(), experimental_delegates=[delegate]
        )
        with interpreter:
            interpreter.allocate_tensors()
            first = step(interpreter, models.INPUTS[0])
            np.testing.assert_allclose(first, models.state_results(models.INPUTS[0])[0], atol=1e-5)
            stuck.append(True)
            for _ in range(2):  # nor does what waits for an end that does not come
                start = time.monotonic()
                with pytest.raises(
                    RunTimeoutError, match=rf"after {SECONDS} seconds \(run_timeout\)"
                ):
                    step(interpreter, models.INPUTS[1])
                assert time.monotonic() - start < 20
            assert len(given_up._held) == 2
            stuck.clear()
            while not all(pending.done() for _, pending in given_up._held):
                time.sleep(0.001)  # until the device has ended them
            interpreter.reset_all_variables()
            found = [step(interpreter, x) for x in models.INPUTS]
            np.testing.assert_allclose(found, models.state_results(*models.INPUTS), atol=1e-5)
            assert not given_up._held  # it was closed with the session


@pytest.mark.parametrize("on_error", ["cpu", "retry"])
@pytest.mark.needs("vulkan")
def test_another_try_or_the_cpu(on_error: str, hangs: Any) -> None:
    stuck = hangs("vulkan")
    with (
        tflgpu.GpuDelegate(backend="vulkan", run_timeout=SECONDS, on_error=on_error) as delegate,
        allocated(
            tflgpu.Interpreter(
                model_content=models.keeps_state(), experimental_delegates=[delegate]
            )
        ) as interpreter,
    ):
        found = [step(interpreter, models.INPUTS[0])]
        stuck.append(True)
        if on_error == "retry":
            with pytest.raises(RunTimeoutError):
                step(interpreter, models.INPUTS[1])
            stuck.clear()
            interpreter.reset_all_variables()
            found = []
        found += [step(interpreter, x) for x in models.INPUTS[len(found) :]]
        np.testing.assert_allclose(found, models.state_results(*models.INPUTS), atol=1e-5)
        refused = len(interpreter.report.refusals)
        assert refused == (2 if on_error == "cpu" else 0)
        stuck.clear()
