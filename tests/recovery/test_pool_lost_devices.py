"""A device of a pool that is lost: others answer what it had, and nothing is lost with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError
from tflgpu.interpreter.model import Model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_cpu_ref.recording import CpuRefRecording

LONG = 60.0
_TENSORS = [TensorSpec("x", (1, 4)), TensorSpec("y", (1, 4))]
MODEL = write_model(ModelSpec(_TENSORS, [OperatorSpec("ADD", {}, [0, 0], [1])], [0], [1]))


class Devices:
    """NumPy's devices, in the order in which they ran something for the first time.

    Attributes:
        lost: Positions of those that are lost; what runs on them raises.
        error: What it raises.
        runs: The positions of the devices that ran, in order.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lost: set[int] = set()
        self.error: type[DeviceError] = DeviceLostError
        self.runs: list[int] = []
        self._tokens: list[Any] = []
        self._lock = threading.Lock()
        run = CpuRefRecording._run

        def _run(recording: Any) -> None:
            with self._lock:
                if recording.device_token not in self._tokens:
                    self._tokens.append(recording.device_token)
                at = self._tokens.index(recording.device_token)
                self.runs.append(at)
            if at in self.lost:
                raise self.error(f"device {at} is gone")
            run(recording)

        patch.setattr(CpuRefRecording, "_run", _run)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    with monkeypatch.context() as patch:
        yield Devices(patch)


def pool_of(count: int, **options: Any) -> tflgpu.Pool:
    return tflgpu.Pool(MODEL, **{"devices": [1] * count, "backend": "cpu_ref", **options})


def number(n: int) -> Any:
    return np.full((1, 4), n, np.float32)


def check(found: Any, n: int) -> None:
    np.testing.assert_array_equal(found[0], number(2 * n))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("by", ["call", "submit"])
def test_others_answer_what_it_had(devices: Devices, batch: int, by: str) -> None:
    """In the middle of many requests, and it is not asked again."""
    with pool_of(3, size=2, batch=batch, deadline=0) as pool, ThreadPoolExecutor(12) as threads:
        for n in range(12):
            check(pool(number(n)), n)
        assert set(devices.runs) == {0, 1, 2}
        devices.lost = {1}
        ask = pool if by == "call" else lambda x: pool.submit(x).result(LONG)
        for n, found in enumerate(threads.map(ask, map(number, range(60)))):
            check(found, n)
        devices.runs.clear()
        for n in range(12):
            check(pool(number(n)), n)
        assert set(devices.runs) == {0, 2}
        assert len(pool.reports) == 4 * (1 if batch == 1 else 3)


def test_one_after_another(devices: Devices, caplog: pytest.LogCaptureFixture) -> None:
    """The last one is opened anew by the request that follows the error."""
    with pool_of(3, size=1) as pool:
        for n in range(3):
            check(pool(number(n)), n)
        for lost in (2, 0):
            devices.lost.add(lost)
            for n in range(4):
                check(pool(number(n)), n)
        devices.lost |= {1, 3}
        with pytest.raises(DeviceLostError, match="device 1 is gone"):
            pool(number(1))
        with pytest.raises(DeviceLostError, match="device 3 is gone"):
            pool.submit(number(1)).result(LONG)
        check(pool(number(5)), 5)
        assert devices.runs[-3:] == [1, 3, 4]
    assert caplog.text.count("of a pool is lost, and the others answer its requests") == 2


def test_the_cpu_is_the_last(devices: Devices) -> None:
    """With ``on_error="cpu"`` no request fails, and the CPU has work only where no device is."""
    with pool_of(2, size=1, on_error="cpu") as pool:
        for n in range(2):
            check(pool(number(n)), n)
        devices.lost = {0}
        for n in range(4):
            check(pool(number(n)), n)
        devices.runs.clear()
        for n in range(4):
            check(pool(number(n)), n)
        assert devices.runs == [1] * 4
        assert len(pool.reports) == 1
        devices.lost = {0, 1}
        for n in range(4):
            check(pool(number(n)), n)
        assert devices.runs == [1] * 5
        assert len(pool.reports) == 2


def test_another_error_is_its_callers(devices: Devices) -> None:
    with pool_of(2, size=1) as pool:
        for n in range(2):
            check(pool(number(n)), n)
        devices.lost, devices.error = {0}, DeviceError
        with pytest.raises(DeviceError, match="device 0 is gone"):
            pool(number(1))
        devices.lost = set()
        for n in range(4):
            check(pool(number(n)), n)
        assert set(devices.runs[-4:]) == {0, 1}


def test_futures_go_on_to_another_device(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were cancelled are not run again, and the others come once."""
    go_on, inside = threading.Event(), threading.Event()
    begin = Model._begin

    def slow(self: Any, *given: Any) -> Any:
        inside.set()
        assert go_on.wait(LONG)
        return begin(self, *given)

    with pool_of(2, size=1) as pool:
        for n in range(2):
            check(pool(number(n)), n)
        monkeypatch.setattr(Model, "_begin", slow)
        devices.lost = {0, 1}
        told: list[int] = []
        futures = [pool.submit(number(n)) for n in range(8)]
        for n, future in enumerate(futures):
            future.add_done_callback(lambda _, n=n: told.append(n))
        assert inside.wait(LONG)
        cancelled = {n for n in (4, 6) if futures[n].cancel()}
        assert cancelled == {4, 6}
        devices.lost = {0}
        go_on.set()
        for n, future in enumerate(futures):
            if n not in cancelled:
                check(future.result(LONG), n)
    assert sorted(told) == list(range(8))


def test_a_pool_that_lost_a_device_gets_another_model(devices: Devices) -> None:
    tripled = [*_TENSORS, TensorSpec("two", (1, 4))]
    steps = [OperatorSpec("ADD", {}, [0, 0], [2]), OperatorSpec("ADD", {}, [2, 0], [1])]
    with pool_of(2, size=1) as pool:
        for n in range(2):
            check(pool(number(n)), n)
        devices.lost = {0}
        check(pool(number(1)), 1)
        check(pool(number(2)), 2)
        pool.replace(write_model(ModelSpec(tripled, steps, [0], [1])))
        np.testing.assert_array_equal(pool(number(1))[0], number(3))
        assert len(pool.reports) == 1
