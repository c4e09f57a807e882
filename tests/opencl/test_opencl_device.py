"""The OpenCL device against the device contract, with plans made by hand."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu_opencl.memory as memory
from opencl_plans import add, affine, biased, chain, chain_expected, dispatch, io, plan, stray
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import DType
from tflgpu.kernel.types import Scalar
from tflgpu.plugins import registry
from tflgpu.runtime.protocols import ArenaRef, ConstRef, Device, InputRef, OutputRef

SIZES = [1, 3, 31, 257, 4099]


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


class TestRuns:
    @pytest.mark.parametrize("count", SIZES)
    def test_a_chain_through_the_arena(self, device: Any, count: int) -> None:
        recording = device.load(chain(count, device.alignment))
        for seed in range(3):
            x = whole(count, seed)
            recording.inputs[0][...] = x
            recording.run()
            assert (recording.outputs[0] == chain_expected(x)).all()

    @pytest.mark.parametrize("much", [1 << 60, 16])
    def test_regions_share_the_arena_or_have_buffers_of_their_own(
        self, device: Any, much: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "_MUCH", much)
        monkeypatch.setattr(memory, "_SHARING", 0)
        made = chain(257, device.alignment)
        x = whole(257)
        recording = device.load(made)
        assert (recording._memory._arena is None) == (much == 16)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x)).all()
        recording.close()

    def test_arrays_keep_their_address_and_inputs_their_contents(self, device: Any) -> None:
        recording = device.load(biased(65))
        arrays = [*recording.inputs, *recording.outputs]
        before = [a.ctypes.data for a in arrays]
        x = whole(65)
        recording.inputs[0][...] = x
        recording.run()
        recording.run()
        assert [a.ctypes.data for a in (*recording.inputs, *recording.outputs)] == before
        assert (arrays[0] == x).all()
        assert (arrays[1] == x + np.arange(65)).all()

    def test_several_inputs_and_outputs_of_several_types(self, device: Any) -> None:
        ints = add(35, Scalar.I32)
        floats = add(35)
        made = device.load(
            plan(
                [
                    dispatch(ints, 35, [InputRef(0), InputRef(2), OutputRef(1)]),
                    dispatch(floats, 35, [InputRef(1), ConstRef(1), OutputRef(0)]),
                ],
                [io("i", (5, 7), DType.I32), io("f", (35,)), io("j", (1, 35, 1), DType.I32)],
                [io("g", (7, 5)), io("k", (35,), DType.I32)],
                constants=[np.ones(3, np.float32), whole(35, 9)],
            )
        )
        rng = np.random.default_rng(5)
        i, j = rng.integers(-(2**31), 2**31, (2, 35)).astype(np.int32)
        f = whole(35, 4)
        assert [a.shape for a in made.inputs] == [(5, 7), (35,), (1, 35, 1)]
        for array, value in zip(made.inputs, (i, f, j), strict=True):
            array[...] = value.reshape(array.shape)
        made.run()
        assert (made.outputs[0] == (f + whole(35, 9)).reshape(7, 5)).all()
        assert (made.outputs[1] == i + j).all()

    def test_half_is_stored_whatever_the_device_computes_in(self, device: Any) -> None:
        from tflgpu.kernel.builder import Builder

        k = Builder("halves", (32, 1, 1))
        src = k.buffer("src", Scalar.F16, 4, "read")
        dst = k.buffer("dst", Scalar.F16, 4, "write")
        i = k.global_id(0)
        with k.if_(i < 17):
            k.store(dst, i, k.load(src, i, as_scalar=Scalar.F32) * 0.5)
        recording = device.load(
            plan(
                [dispatch(k.build(), 17, [InputRef(0), OutputRef(0)])],
                [io("x", (68,), DType.F16)],
                [io("y", (68,), DType.F16)],
            )
        )
        x = whole(68).astype(np.float16)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == x * np.float16(0.5)).all()

    def test_no_dispatches_and_empty_tensors(self, device: Any) -> None:
        recording = device.load(plan([], [io("x", (0, 3))], [io("y", (0,)), io("z", (2,))]))
        recording.run()
        assert recording.inputs[0].shape == (0, 3)
        assert recording.outputs[0].shape == (0,)
        assert recording.profile() == []

    def test_empty_bindings_and_an_empty_grid(self, device: Any) -> None:
        recording = device.load(
            plan(
                [
                    dispatch(affine(0), 32, [ArenaRef(0, 0), OutputRef(0)], "nothing to do"),
                    dispatch(add(0), 0, [ConstRef(0), InputRef(0), OutputRef(0)], "no groups"),
                ],
                [io("x", (0,))],
                [io("y", (0,))],
                constants=[np.zeros(0, np.float32)],
            )
        )
        recording.run()
        assert [t.label for t in recording.profile()] == ["nothing to do", "no groups"]

    def test_profile_times_every_dispatch_and_gives_the_outputs(self, device: Any) -> None:
        recording = device.load(chain(257, device.alignment, steps=4))
        x = whole(257)
        recording.inputs[0][...] = x
        times = recording.profile()
        assert [(t.label, t.kernel) for t in times] == [(f"step {i}", "affine") for i in range(4)]
        assert all(0 < t.seconds < 1 for t in times)
        assert (recording.outputs[0] == chain_expected(x, 4)).all()
        recording.run()
        assert (recording.outputs[0] == chain_expected(x, 4)).all()


class TestLimits:
    def test_an_unaligned_arena_offset(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        bad = dispatch(affine(4), 4, [ArenaRef(4, 16), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=r"conv 7.*aligned"):
            device.load(plan([bad], outputs=[io("y", (4,))], arena=1024))

    def test_a_region_outside_the_arena(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        bad = dispatch(affine(4), 4, [ArenaRef(1024, 16), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=r"conv 7.*1024 bytes"):
            device.load(plan([bad], outputs=[io("y", (4,))], arena=1024))

    @pytest.mark.parametrize(
        "refs", [[InputRef(0)], [InputRef(1), OutputRef(0)], [ConstRef(0), OutputRef(0)]]
    )
    def test_bindings_that_do_not_exist(self, open_device: Callable[..., Any], refs: Any) -> None:
        bad = plan([dispatch(affine(4), 4, refs, "conv 7")], [io("x", (4,))], [io("y", (4,))])
        with pytest.raises(DeviceError, match="conv 7"):
            open_device().load(bad)

    def test_too_large_a_buffer_is_refused_by_name(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        huge = device.caps.max_buffer_bytes + device.alignment
        whole_arena = dispatch(affine(4), 4, [ArenaRef(0, huge), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=rf"arena.*{huge}"):
            device.load(plan([whole_arena], outputs=[io("y", (4,))], arena=huge))

    def test_caps_are_the_device_s(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        assert isinstance(device, Device)
        assert device.info == registry().probe("opencl").devices[0]
        assert device.caps.vendor == device.info.vendor
        assert device.caps.max_workgroup >= 64
        assert device.caps.max_buffer_bytes >= 1 << 24
        assert device.alignment & (device.alignment - 1) == 0

    def test_an_index_out_of_range_lists_the_devices(self, open_device: Callable[..., Any]) -> None:
        from tflgpu_opencl.device import OpenCLDevice

        name = open_device().info.name
        with pytest.raises(DeviceError) as caught:
            OpenCLDevice(10_000)
        assert f"0 = {name}" in str(caught.value)


class TestGuardBands:
    @pytest.mark.parametrize("count", SIZES)
    def test_a_correct_plan_passes(self, device: Any, count: int) -> None:
        recording = device.load(chain(count, device.alignment), guard_bands=True)
        x = whole(count)
        for _ in range(2):
            recording.inputs[0][...] = x
            recording.run()
            assert (recording.outputs[0] == chain_expected(x)).all()

    @pytest.mark.parametrize("at", [-1, 33, 700])
    @pytest.mark.parametrize("where", ["output", "arena"])
    def test_a_stray_write_is_named(self, device: Any, at: int, where: str) -> None:
        ref = OutputRef(0) if where == "output" else ArenaRef(device.alignment, 33 * 4)
        made = plan(
            [
                dispatch(affine(33), 33, [InputRef(0), OutputRef(0)], "innocent"),
                dispatch(stray(33, at), 33, [ref], "culprit"),
            ],
            [io("x", (33,))],
            [io("y", (33,))],
            arena=4096,
        )
        recording = device.load(made, guard_bands=True)
        with pytest.raises(DeviceError) as caught:
            recording.run()
        message = str(caught.value)
        assert "dispatch culprit, kernel stray" in message
        assert ("output y" if where == "output" else f"arena bytes {device.alignment}") in message
        assert f"first at offset {at * 4}" in message
        with pytest.raises(DeviceError, match="earlier run"):
            recording.run()

    def test_what_was_not_written_is_no_number(self, device: Any) -> None:
        made = plan(
            [dispatch(affine(8), 8, [ArenaRef(0, 32), OutputRef(0)])],
            outputs=[io("y", (8,)), io("z", (3,))],
            arena=1024,
        )
        recording = device.load(made, guard_bands=True)
        recording.run()
        assert np.isnan(recording.outputs[0]).all()
        assert np.isnan(recording.outputs[1]).all()


class TestLifetime:
    def test_closing_twice_and_use_after_close(self, device: Any) -> None:
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

    def test_a_device_closes_its_recordings(self, device: Any) -> None:
        recording = device.load(biased(9))
        device.close()
        with pytest.raises(StateError):
            recording.run()

    def test_arrays_outlive_their_recording(self, device: Any) -> None:
        recording = device.load(biased(9))
        x, y = recording.inputs[0], recording.outputs[0]
        x[...] = 1
        recording.run()
        recording.close()
        device.close()
        x[...] = 5
        assert (y == 1 + np.arange(9)).all()

    def test_a_driver_error_ends_the_recording(self, device: Any) -> None:
        class Failing:
            def submit(self) -> None:
                raise DeviceError("the device is gone")

        recording = device.load(biased(9))
        working = recording._all
        recording._all = Failing()
        with pytest.raises(DeviceError, match="gone"):
            recording.run()
        recording._all = working
        with pytest.raises(DeviceError, match=r"earlier run.*gone"):
            recording.run()
        recording.close()

    def test_a_refused_dispatch_is_named(self, device: Any) -> None:
        recording = device.load(chain(33, device.alignment))
        wrong = attrs.evolve(recording._launches[1].dispatch.kernel, workgroup=(7, 1, 1))
        launch = attrs.evolve(
            recording._launches[1],
            dispatch=attrs.evolve(recording._launches[1].dispatch, kernel=wrong),
        )
        commands = type(recording._all)(recording._queue, recording._native)
        for item in (recording._launches[0], launch, recording._launches[2]):
            item.add_to(commands)
        recording._all = commands
        with pytest.raises(DeviceError, match=r"step 1, kernel affine: INVALID_WORK_GROUP_SIZE"):
            recording.run()
        with pytest.raises(DeviceError, match="earlier run"):
            recording.run()

    def test_threads_with_a_recording_each(self, device: Any) -> None:
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

    def test_two_opened_devices_side_by_side(self, open_device: Callable[..., Any]) -> None:
        first, second = (open_device().load(biased(33)) for _ in range(2))
        first.inputs[0][...] = 1
        second.inputs[0][...] = 2
        first.run()
        second.run()
        assert (second.outputs[0] - first.outputs[0] == 1).all()

    def test_ten_thousand_runs_take_no_memory(self, device: Any) -> None:
        recording = device.load(biased(17))

        def run(times: int) -> int:
            for _ in range(times):
                recording.run()
            return resident()

        before = run(3000)
        assert run(10_000) - before < 2 << 20

    def test_loading_and_closing_takes_no_memory(self, device: Any) -> None:
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
