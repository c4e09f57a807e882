"""What of Vulkan's is released when, and what a failing driver leaves."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.compiler.plan import InputRef, OutputRef
from tflgpu.conformance.plans import affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import CompileError, DeviceError, StateError

from tests.running import raising


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


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


def test_failed_loading_leaves_nothing_behind(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = device._context
    before = context._users
    monkeypatch.setattr(
        device._kernels, "get", raising(CompileError("the driver takes nothing today"))
    )
    fine = dispatch(affine(4), 4, [InputRef(0), OutputRef(0)])
    made = plan([fine], [io("x", (4,))], [io("y", (4,))], constants=[whole(99)], arena=4096)
    for _ in range(3):
        with pytest.raises(CompileError, match="nothing today"):
            device.load(made)
    gc.collect()
    device._heaps.release()  # a piece for the next copy
    assert context._users == before


def test_copies_make_commands_once(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan import heaps

    made = []

    class Counted(heaps.Commands):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            made.append(self)

        def release(self) -> None:
            super().release()
            made.remove(self)

    monkeypatch.setattr(heaps, "Commands", Counted)
    device = open_device(share_memory=False)
    buffer, found = device.allocate(16), np.empty(16, np.uint8)
    for value in range(3):
        buffer.write(np.full(16, value, np.uint8))
        buffer.read(found)
        assert found.tolist() == [value] * 16
        assert len(made) == 1
    monkeypatch.setattr(heaps.Commands, "submit", _fails)
    with pytest.raises(DeviceError, match="does not copy"):
        buffer.read(found)
    assert not made  # those of a copy that failed are not used again
    monkeypatch.undo()
    buffer.read(found)
    assert found.tolist() == [2] * 16


def test_an_interrupted_copy_frees_what_the_device_is_done_with(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan import context, heaps

    seen: list[str] = []

    def noted(owner: Any, name: str) -> None:
        kept = getattr(owner, name)

        def call(*args: Any) -> Any:
            kept(*args)
            seen.append(name)

        monkeypatch.setattr(owner, name, call)

    device = open_device(share_memory=False)
    buffer = device.allocate(1 << 20)
    monkeypatch.setattr(context.Context, "finish", raising(KeyboardInterrupt))
    noted(context.Context, "wait_idle")
    noted(heaps.Commands, "release")
    with pytest.raises(KeyboardInterrupt):
        buffer.write(np.ones(1 << 20, np.uint8))
    assert seen == ["wait_idle", "release"]
    monkeypatch.undo()
    buffer.write(np.full(1 << 20, 3, np.uint8))
    found = np.empty(1 << 20, np.uint8)
    buffer.read(found)
    assert (found == 3).all()


def _fails(*args: Any) -> None:
    raise DeviceError("the device does not copy")


@pytest.mark.needs("vulkan")
def test_what_is_dropped_is_released() -> None:
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


@pytest.mark.parametrize(
    "where", ["vkDestroyFence", "vkDestroyCommandPool", "vkDestroyDescriptorPool"]
)
def test_what_a_signal_ended_is_not_destroyed_twice(
    device: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from tflgpu_vulkan import context, record
    from tflgpu_vulkan.api import ffi, lib

    destroyed: list[tuple[str, int]] = []

    class Interrupted:
        """The library; a signal comes when one of its functions has returned."""

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("vkDestroy"):
                return getattr(lib, name)

            def destroy(owner: Any, handle: Any, allocator: Any) -> None:
                if handle == ffi.NULL:
                    return
                made = name, int(ffi.cast("uintptr_t", handle))
                if made not in destroyed:  # a second time would end the process
                    getattr(lib, name)(owner, handle, allocator)
                destroyed.append(made)
                if [each for each, _ in destroyed].count(name) == 1 and name == where:
                    raise KeyboardInterrupt

            return destroy

    recording = device.load(biased(9))
    recording.run()
    for module in (context, record):
        monkeypatch.setattr(module, "lib", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        recording.close()
    recording.close()
    assert where in {name for name, _ in destroyed}
    assert len(set(destroyed)) == len(destroyed)


def test_what_could_not_be_recorded_is_released_once(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan.context import Commands

    released: list[Commands] = []
    release = Commands.release

    def counted(self: Any) -> None:
        released.append(self)
        release(self)

    monkeypatch.setattr(Commands, "release", counted)
    monkeypatch.setattr(
        "tflgpu.backend_kit.pooled_recording.output_sets", raising(DeviceError("no commands"))
    )
    with pytest.raises(DeviceError, match="no commands"):
        device.load(chain(9, device.alignment))
    gc.collect()
    assert released
    assert len(released) == len({id(commands) for commands in released})
