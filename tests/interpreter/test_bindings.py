"""Buffers of a device that a model is not on any more: bindings can be taken back, whatever became
of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError, StateError, UnsupportedError

from tests.recovery import recovery_models as models
from tests.running import set_and_run
from tests.watched_device import WatchedDevice


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> WatchedDevice:
    return WatchedDevice(monkeypatch)


BOUND_X = np.full((1, 1024), 3, np.float32)
INPUT, OUTPUT = 0, 2


@pytest.fixture
def bound() -> Iterator[Callable[..., Any]]:
    """Makes an interpreter whose input and output are bound to buffers of its device, and has
    run."""
    held: list[Any] = []

    def make(**options: Any) -> Any:
        held.append(tflgpu.GpuDelegate(backend="cpu_ref", device=1, **options))
        interpreter = tflgpu.Interpreter(
            model_content=models.large(1), experimental_delegates=[held[-1]]
        )
        held.append(interpreter)
        interpreter.allocate_tensors()
        x, y = interpreter.allocate_buffer(INPUT), interpreter.allocate_buffer(OUTPUT)
        x.write(BOUND_X)
        interpreter.bind_input(INPUT, x)
        interpreter.bind_output(OUTPUT, y)
        interpreter.invoke()
        np.testing.assert_array_equal(y.read(), 2 * BOUND_X)
        return interpreter

    yield make
    while held:
        held.pop().close()


def test_the_cpu_goes_on_once_nothing_is_bound(
    faults: WatchedDevice, bound: Callable[..., Any]
) -> None:
    interpreter = bound(on_error="cpu")
    faults.fails = [DeviceError("no")]
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"cannot be bound .* after unbind\(\)"):
            interpreter.invoke()
    interpreter.unbind()
    interpreter.invoke()  # on what was in the buffer
    np.testing.assert_array_equal(interpreter.get_tensor(OUTPUT), 2 * BOUND_X)
    (refusal,) = interpreter.report.refusals
    assert "a run failed: no" in refusal.reason


def test_a_lost_device_takes_what_was_bound_with_it(
    faults: WatchedDevice, bound: Callable[..., Any]
) -> None:
    interpreter = bound()
    faults.fails = [DeviceLostError("gone")]
    with pytest.raises(DeviceLostError):
        interpreter.invoke()
    with pytest.raises(DeviceError, match=r"after unbind\(\)"):
        interpreter.invoke()
    interpreter.unbind()
    with pytest.raises(StateError, match=r"is lost \(this .* closed\); set it again: tensor 0"):
        interpreter.invoke()
    with pytest.raises(StateError, match="it was bound to a DeviceBuffer, which is lost"):
        interpreter.get_tensor(INPUT)
    set_and_run(interpreter, {INPUT: 2 * BOUND_X})
    np.testing.assert_array_equal(interpreter.get_tensor(OUTPUT), 4 * BOUND_X)
