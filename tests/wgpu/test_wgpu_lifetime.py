"""Opening, closing, failing, and many of each."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opencl_plans import affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import DeviceError, StateError
from tflgpu.runtime.protocols import InputRef, OutputRef


def test_closing_twice_and_use_after_close(device: Any) -> None:
    recording = device.load(biased(9))
    recording.run()
    recording.close()
    recording.close()
    with pytest.raises(StateError):
        recording.run()
    with pytest.raises(StateError):
        recording.profile()
    device.close()
    device.close()
    with pytest.raises(StateError):
        device.load(biased(9))


def test_a_device_closes_its_recordings(device: Any) -> None:
    recording = device.load(biased(9))
    device.close()
    with pytest.raises(StateError):
        recording.run()
    recording.close()


def test_arrays_outlive_their_recording(device: Any) -> None:
    recording = device.load(biased(9))
    x, y = recording.inputs[0], recording.outputs[0]
    x[...] = 1
    recording.run()
    recording.close()
    device.close()
    x[...] = 5
    assert (y == 1 + np.arange(9)).all()


def test_a_refused_command_ends_the_recording(device: Any) -> None:
    from tflgpu_wgpu.native import Commands, Launch

    recording = device.load(biased(33))
    other = device.load(chain(33, device.alignment))
    # Bindings for another kernel's buffers: what wgpu refuses when the encoding is finished.
    wrong = Launch(
        recording._bound[0].launch.pipeline, other._bound[0].launch.bind_group, (1, 1, 1)
    )
    working = recording._all
    recording._all = Commands(device._device, [], [wrong], [])
    with pytest.raises(DeviceError, match=r"(?is)running.*bind group"):
        recording.run()
    recording._all = working
    with pytest.raises(DeviceError, match=r"(?is)earlier run.*bind group"):
        recording.run()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.profile()
    recording.close()
    other.run()
    assert (other.outputs[0] == chain_expected(np.zeros(33))).all()


def test_threads_with_a_recording_each(device: Any) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            count = 101 + seed
            recording = device.load(chain(count, device.alignment))
            for turn in range(20):
                x = np.random.default_rng(seed * 100 + turn).integers(-50, 50, count)
                recording.inputs[0][...] = x
                recording.run()
                if not (recording.outputs[0] == chain_expected(x)).all():
                    failures.append((seed, turn))
            recording.close()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_opened_devices_side_by_side(open_device: Callable[..., Any]) -> None:
    first, second = (open_device().load(biased(33)) for _ in range(2))
    first.inputs[0][...] = 1
    second.inputs[0][...] = 2
    first.run()
    second.run()
    assert (second.outputs[0] - first.outputs[0] == 1).all()


def test_closed_devices_keep_no_threads(open_device: Callable[..., Any]) -> None:
    before = threading.active_count()
    closed = []
    for _ in range(3):
        device = open_device()
        recording = device.load(biased(9))
        device.close()
        closed += [device, recording]
    # Whoever still holds the closed objects does not hold what they held.
    assert threading.active_count() == before


def test_thousands_of_runs_take_no_memory(device: Any) -> None:
    recording = device.load(biased(17))

    def run(times: int) -> int:
        for _ in range(times):
            recording.run()
        return resident()

    before = run(1000)
    assert run(4000) - before < 2 << 20


def test_loading_and_closing_takes_no_memory(device: Any) -> None:
    made = plan(
        [dispatch(affine(64), 64, [InputRef(0), OutputRef(0)])],
        [io("x", (1 << 18,))],
        [io("y", (1 << 18,))],
        constants=[np.ones(1 << 18, np.float32)],
        arena=1 << 20,
    )

    def turn(times: int) -> int:
        for _ in range(times):
            recording = device.load(made)
            recording.inputs[0][...] = 1
            recording.run()
            recording.close()
        return resident()

    before = turn(20)
    # A leak of any one of the plan's buffers would be 40 MiB or more.
    assert turn(40) - before < 16 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        pytest.skip("needs /proc")
    return pages * resource.getpagesize()
