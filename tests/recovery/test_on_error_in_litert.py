"""Inside LiteRT's interpreter: what follows when a run fails on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.watched_device import WatchedDevice

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


def model() -> bytes:
    tensors = [TensorSpec(n, (2, 5)) for n in "xyz"]
    operators = [OperatorSpec("ABS", {}, (0,), (1,)), OperatorSpec("NEG", {}, (1,), (2,))]
    return write_model(ModelSpec(tensors, operators, (0,), (2,)))


@pytest.mark.parametrize("lost", [False, True], ids=["failed", "lost"])
@pytest.mark.parametrize("on_error", [None, "cpu", "retry"])
def test_a_run_fails(
    on_error: str | None, lost: bool, monkeypatch: pytest.MonkeyPatch,
    require_backend: Callable[[str], Any],
) -> None:  # fmt: skip
    require_backend("litert")
    from ai_edge_litert.interpreter import Interpreter
    from tflgpu_cpu_ref.device import CpuRefDevice
    from tflgpu_cpu_ref.recording import CpuRefRecording

    errors: list[Exception] = []
    counts = {"run": 0, "opened": 0}
    run, init = CpuRefRecording._run, CpuRefDevice.__init__

    def failing(recording: Any) -> None:
        counts["run"] += 1
        if errors:
            raise errors.pop()
        run(recording)

    def counted(device: Any, *args: Any) -> None:
        counts["opened"] += 1
        init(device, *args)

    monkeypatch.setattr(CpuRefRecording, "_run", failing)
    monkeypatch.setattr(CpuRefDevice, "__init__", counted)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, on_error=on_error) as delegate:
        interpreter = Interpreter(model_content=model(), experimental_delegates=[delegate])
        interpreter.allocate_tensors()

        def result(x: Any) -> Any:
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
            interpreter.invoke()
            return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

        np.testing.assert_array_equal(result(X), -np.abs(X))
        errors.append(DeviceLostError("gone") if lost else DeviceError("no"))
        runs = counts["run"]
        if on_error is None:
            with pytest.raises(RuntimeError, match="gone" if lost else "no"):
                result(X * 2)
        else:
            np.testing.assert_array_equal(result(X * 2), -np.abs(X * 2))
        np.testing.assert_array_equal(result(X * 3), -np.abs(X * 3))
        assert counts["run"] - runs == {None: 2, "cpu": 1, "retry": 3}[on_error]
        assert counts["opened"] == (2 if lost and on_error != "cpu" else 1)


def test_a_lost_device_is_opened_anew_as_often_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, require_backend: Callable[[str], Any]
) -> None:
    require_backend("litert")
    from ai_edge_litert.interpreter import Interpreter

    faults = WatchedDevice(monkeypatch)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        interpreter = Interpreter(model_content=model(), experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, X)
        interpreter.invoke()
        faults.fails = [DeviceLostError("gone")]
        with pytest.raises(RuntimeError, match="gone"):
            interpreter.invoke()
        with monkeypatch.context() as patch:
            patch.setattr(OpenedDevice, "renew", _refuses)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="there is none now"):
                    interpreter.invoke()
        opened = faults.opened
        interpreter.invoke()
        assert faults.opened == opened + 1
        np.testing.assert_array_equal(interpreter.get_tensor(2), -np.abs(X))


def _refuses(*args: Any) -> None:
    raise DeviceError("there is none now")
