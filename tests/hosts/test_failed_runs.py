"""Inside LiteRT's interpreter: what follows when a run fails on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError
from tflgpu.runtime.opened_device import OpenedDevice

from tests.running import allocate_and_run, allocated, raising, set_and_run
from tests.small_models import small_model
from tests.watched_device import WatchedDevice

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


def model() -> bytes:
    return small_model(dict.fromkeys("xyz", (2, 5)), "y = ABS(x)", "z = NEG(y)")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> WatchedDevice:
    return WatchedDevice(monkeypatch)


@pytest.mark.parametrize("lost", [False, True], ids=["failed", "lost"])
@pytest.mark.parametrize("on_error", [None, "cpu", "retry"])
@pytest.mark.needs("litert")
def test_a_run_fails(on_error: str | None, lost: bool, faults: WatchedDevice) -> None:
    from ai_edge_litert.interpreter import Interpreter

    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, on_error=on_error) as delegate:
        interpreter = allocated(
            Interpreter(model_content=model(), experimental_delegates=[delegate])
        )

        def result(x: Any) -> Any:
            set_and_run(interpreter, {interpreter.get_input_details()[0]["index"]: x})
            return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

        np.testing.assert_array_equal(result(X), -np.abs(X))
        faults.fails = [DeviceLostError("gone") if lost else DeviceError("no")]
        runs = faults.runs
        if on_error is None:
            with pytest.raises(RuntimeError, match="gone" if lost else "no"):
                result(X * 2)
        else:
            np.testing.assert_array_equal(result(X * 2), -np.abs(X * 2))
        np.testing.assert_array_equal(result(X * 3), -np.abs(X * 3))
        assert faults.runs - runs == {None: 2, "cpu": 1, "retry": 3}[on_error]
        assert faults.opened == (2 if lost and on_error != "cpu" else 1)


@pytest.mark.needs("litert")
def test_a_lost_device_is_opened_anew_as_often_as_it_takes(
    faults: WatchedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_litert.interpreter import Interpreter

    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        interpreter = Interpreter(model_content=model(), experimental_delegates=[delegate])
        allocate_and_run(interpreter, {0: X})
        faults.fails = [DeviceLostError("gone")]
        with pytest.raises(RuntimeError, match="gone"):
            interpreter.invoke()
        with monkeypatch.context() as patch:
            patch.setattr(OpenedDevice, "renew", raising(DeviceError("there is none now")))
            for _ in range(2):
                with pytest.raises(RuntimeError, match="there is none now"):
                    interpreter.invoke()
        opened = faults.opened
        interpreter.invoke()
        assert faults.opened == opened + 1
        np.testing.assert_array_equal(interpreter.get_tensor(2), -np.abs(X))
