"""What is released when, what can still be used, and several of each at a time."""

from __future__ import annotations

import threading

import numpy as np

from tflgpu.conformance.contract.tools import (
    fill,
    own,
    refused,
    same,
    shared,
    small,
    whole,
    works,
)
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.errors import StateError

_THREADS = 4
_TURNS = 20


def lifetime_checks() -> list[Check]:
    """Closing and use after it, arrays that are still held, several devices and threads."""
    return [
        shared("recording_closes_twice", _recording_closes_twice),
        shared("a_run_after_close", _a_run_after_close),
        own("device_closes_twice", _device_closes_twice),
        own("a_load_after_close", _a_load_after_close),
        own("a_device_closes_its_recordings", _a_device_closes_its_recordings),
        own("arrays_outlive_their_device", _arrays_outlive_their_device),
        Check("0/another_device", _another_device),
        own("threads", _threads),
    ]


def _recording_closes_twice(device: Device) -> None:
    for guarded in (False, True):
        recording = device.load(small(device), guard_bands=guarded)
        recording.run()
        recording.close()
        recording.close()
    device.load(small(device)).close()  # one that never ran
    works(device, "a plan loaded after others were closed")


def _a_run_after_close(device: Device) -> None:
    recording = device.load(small(device))
    recording.run()
    recording.close()
    refused(recording.run, "running a closed recording", StateError)
    refused(recording.profile, "profiling a closed recording", StateError)


def _device_closes_twice(device: Device) -> None:
    works(device, "a plan")
    device.close()
    device.close()


def _a_load_after_close(device: Device) -> None:
    made = small(device)
    device.close()
    refused(lambda: device.load(made), "loading on a closed device", StateError)


def _a_device_closes_its_recordings(device: Device) -> None:
    recordings = [device.load(small(device), guard_bands=guarded) for guarded in (False, True)]
    recordings[1].run()
    device.close()
    for recording in recordings:
        refused(recording.run, "running a recording of a closed device", StateError)
        recording.close()


def _arrays_outlive_their_device(device: Device) -> None:
    """Arrays that are still referenced can be read and written: in Python nothing else is safe."""
    recording = device.load(small(device))
    x, y = recording.inputs[0], recording.outputs[0][2:]
    x[...] = 3
    recording.run()
    recording.close()
    device.close()
    del recording
    x[...] = 5
    same(np.array(y), 3 + np.arange(2, 9, dtype=np.float32), "an output after close")
    same(np.array(x), np.full(9, 5, np.float32), "an input after close")


def _another_device(target: DeviceUnderTest) -> Outcome:
    """A second device of the same index works beside the first, and outlives it."""
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    opened = [target.reopen(), target.reopen()]
    try:
        recordings = []
        for each in opened:
            assert isinstance(each.device, Device)
            recordings.append(each.device.load(small(each.device, 33)))
        for i, recording in enumerate(recordings):
            recording.inputs[0][...] = i
        for recording in recordings:
            recording.run()
        difference = recordings[1].outputs[0] - recordings[0].outputs[0]
        assert (difference == 1).all(), "the recordings of two devices share memory"
        opened[0].close()
        recordings[1].inputs[0][...] = 7
        recordings[1].run()
        got = np.array(recordings[1].outputs[0])
        same(got, 7 + np.arange(33, dtype=np.float32), "a run after another device was closed")
    finally:
        for each in opened:
            each.close()
    works(target.device, "a plan on the first device, after two others were closed")
    return None


def _threads(device: Device) -> None:
    """Several load, run and close on one device, each with recordings of its own."""
    failures: list[str] = []

    def work(seed: int) -> None:
        count = 101 + seed
        try:
            for load in range(2):
                recording = device.load(chain(count, device.alignment))
                for turn in range(_TURNS):
                    x = whole(count, seed * 100 + turn)
                    fill(recording, x)
                    recording.run()
                    same(
                        np.array(recording.outputs[0]),
                        chain_expected(x),
                        f"load {load}, run {turn}",
                    )
                recording.close()
        except Exception as error:  # noqa: BLE001
            failures.append(f"thread {seed} of {_THREADS}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "; ".join(failures)
