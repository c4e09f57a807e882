"""What is released when, what can still be used, threads, and failures."""

from __future__ import annotations

import gc
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.plans import affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import DeviceError, StateError
from tflgpu.runtime.protocols import InputRef, OutputRef


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


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
    profiled = device.load(biased(9), guard_bands=True)
    profiled.run()
    device.close()
    for each in (recording, profiled):
        with pytest.raises(StateError):
            each.run()
        each.close()


def test_arrays_outlive_their_recording_and_their_device(device: Any) -> None:
    recording = device.load(biased(9))
    recording.inputs[0][...] = 3
    recording.run()
    source, result = recording.inputs[0], recording.outputs[0][2:]
    context = device._context
    recording.close()
    device.close()
    assert context._users in (1, 2)  # blocks of inputs and of outputs may be one
    source[...] = 5
    assert result.tolist() == [5, 6, 7, 8, 9, 10, 11]
    del source, result, recording
    gc.collect()
    assert context._users == 0


def test_failed_loading_leaves_nothing_behind(device: Any) -> None:
    context = device._context
    before = context._users
    bad = dispatch(affine(4), 4, [InputRef(1), OutputRef(0)])
    made = plan([bad], [io("x", (4,))], [io("y", (4,))], constants=[whole(99)], arena=4096)
    for _ in range(3):
        with pytest.raises(DeviceError):
            device.load(made)
    gc.collect()
    assert context._users == before


def test_what_is_dropped_is_released(require_backend: Callable[[str], Any]) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.device import VulkanDevice

    device = VulkanDevice(0)
    context = device._context
    recording = device.load(biased(9))
    recording.run()
    assert context._users > 1
    del recording
    gc.collect()
    assert context._users == 1
    kept = device.load(biased(9))
    del device
    gc.collect()
    with pytest.raises(StateError):
        kept.run()
    assert context._users == 0


@pytest.mark.parametrize("stage", ["submit", "wait"])
def test_a_failing_driver_is_named(
    device: Any, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    from tflgpu_vulkan import context
    from tflgpu_vulkan.api import lib, vk

    class Lost:
        """The library, on a device that is lost."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        if stage == "submit":
            vkQueueSubmit = staticmethod(lambda *args: vk.VK_ERROR_DEVICE_LOST)  # noqa: N815
        else:
            vkGetFenceStatus = staticmethod(lambda *args: vk.VK_ERROR_DEVICE_LOST)  # noqa: N815
            vkWaitForFences = staticmethod(lambda *args: vk.VK_ERROR_DEVICE_LOST)  # noqa: N815

    recording = device.load(biased(9))
    monkeypatch.setattr(context, "lib", Lost())
    with pytest.raises(DeviceError, match="running: VK_ERROR_DEVICE_LOST"):
        recording.run()
    monkeypatch.undo()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.run()
    recording.close()


@pytest.mark.parametrize("spin", [0.0, 1.0])
def test_waiting_in_both_ways(device: Any, spin: float) -> None:
    device._context._spin = spin
    recording = device.load(chain(4099, device.alignment))
    for seed in range(5):
        x = whole(4099, seed)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x)).all()


def test_threads_with_a_recording_each(device: Any) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            count = 101 + seed
            recording = device.load(chain(count, device.alignment))
            for turn in range(20):
                x = whole(count, seed * 100 + turn)
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


def test_ten_thousand_runs_take_no_memory(device: Any) -> None:
    recording = device.load(biased(17))

    def run(times: int) -> int:
        for _ in range(times):
            recording.run()
        return resident()

    before = run(3000)
    assert run(10_000) - before < 2 << 20


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
