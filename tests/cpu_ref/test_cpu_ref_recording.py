"""What all recordings have of their base: buffers that are let go of, who is waited for, and the
lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tflgpu.conformance.plans import biased
from tflgpu.errors import DeviceError
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.running import raising

_BYTES = 4 * 9


@pytest.fixture
def device() -> Iterator[CpuRefDevice]:
    opened = CpuRefDevice()
    yield opened
    opened.close()


def test_buffers_of_a_binding_that_failed_are_freed(
    device: CpuRefDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, recording = device.memory, device.load(biased(9))
    old, new = device.allocate(_BYTES), device.allocate(_BYTES)
    recording.bind({0: old})
    monkeypatch.setattr(recording, "_rebind", raising(DeviceError("the driver binds nothing")))
    with pytest.raises(DeviceError, match="binds nothing"):
        recording.bind({0: new})
    with pytest.raises(DeviceError, match="earlier run"):
        recording.run()
    for each in (old, new, recording):
        each.close()
    assert device.memory == before


def test_whoever_shares_a_buffer_is_waited_for(device: CpuRefDevice) -> None:
    recording, buffer = device.load(biased(9)), device.allocate(_BYTES)
    waits: list[str] = []
    buffer.wait = lambda: waits.append("once")
    recording.bind({0: buffer})
    for use in (recording.run, recording.submit, recording.profile):
        waits.clear()
        use()
        assert waits, use


def test_closing_waits_for_the_run_of_another_thread(
    device: CpuRefDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = device.load(biased(9))
    recording.inputs[0][...] = 1
    compute, closers, was_released = recording._run, [], []

    def run() -> None:
        closers.append(threading.Thread(target=device.close))
        closers[0].start()
        closers[0].join(0.05)
        was_released.append(recording._released)
        compute()

    result = recording.outputs[0]
    monkeypatch.setattr(recording, "_run", run)
    recording.run()
    closers[0].join()
    assert was_released == [False]
    assert recording._released
    assert result.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
