"""The WebGPU device against the device contract, with plans made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from opencl_plans import add, affine, biased, chain, chain_expected, dispatch, io, plan, stray
from tflgpu.errors import CompileError, DeviceError
from tflgpu.ir.dtypes import DType
from tflgpu.kernel.builder import Builder
from tflgpu.kernel.tree import Kernel
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

    @pytest.mark.parametrize("steps", [15, 16, 17, 18])
    def test_chains_longer_than_a_command_buffer(self, device: Any, steps: int) -> None:
        recording = device.load(chain(257, device.alignment, steps=steps))
        x = whole(257)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x, steps)).all()

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

    @pytest.mark.parametrize("guarded", [False, True])
    def test_several_inputs_and_outputs_of_several_types(self, device: Any, guarded: bool) -> None:
        made = device.load(
            plan(
                [
                    dispatch(add(35, Scalar.I32), 35, [InputRef(0), InputRef(2), OutputRef(1)]),
                    dispatch(add(35), 35, [InputRef(1), ConstRef(1), OutputRef(0)]),
                ],
                [io("i", (5, 7), DType.I32), io("f", (35,)), io("j", (1, 35, 1), DType.I32)],
                [io("g", (7, 5)), io("k", (35,), DType.I32)],
                constants=[np.ones(3, np.float32), whole(35, 9)],
            ),
            guard_bands=guarded,
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

    @pytest.mark.parametrize("guarded", [False, True])
    @pytest.mark.parametrize("count", [1, 3, 17])
    def test_sizes_that_are_no_whole_words(self, device: Any, count: int, guarded: bool) -> None:
        """WebGPU copies multiples of 4 bytes; an odd number of f16 is none."""
        if not device.caps.f16_storage:
            pytest.skip(f"{device.info.name} has no shader-f16")
        k = Builder("halves", (32, 1, 1))
        src = k.buffer("src", Scalar.F16, 1, "read")
        dst = k.buffer("dst", Scalar.F16, 1, "write")
        i = k.global_id(0)
        with k.if_(i < count):
            k.store(dst, i, k.load(src, i, as_scalar=Scalar.F32) * 0.5)
        recording = device.load(
            plan(
                [dispatch(k.build(), count, [InputRef(0), OutputRef(0)])],
                [io("x", (count,), DType.F16)],
                [io("y", (count,), DType.F16)],
            ),
            guard_bands=guarded,
        )
        x = whole(count).astype(np.float16)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == x * np.float16(0.5)).all()

    def test_no_dispatches_and_empty_tensors(self, device: Any) -> None:
        recording = device.load(plan([], [io("x", (0, 3))], [io("y", (0,)), io("z", (2,))]))
        recording.run()
        assert recording.inputs[0].shape == (0, 3)
        assert recording.outputs[0].shape == (0,)
        assert recording.profile() == []

    @pytest.mark.parametrize("guarded", [False, True])
    def test_empty_bindings_and_an_empty_grid(self, device: Any, guarded: bool) -> None:
        recording = device.load(
            plan(
                [
                    dispatch(affine(0), 32, [ArenaRef(0, 0), OutputRef(0)], "nothing to do"),
                    dispatch(add(0), 0, [ConstRef(0), InputRef(0), OutputRef(0)], "no groups"),
                ],
                [io("x", (0,))],
                [io("y", (0,))],
                constants=[np.zeros(0, np.float32)],
            ),
            guard_bands=guarded,
        )
        recording.run()
        assert recording.outputs[0].shape == (0,)

    def test_profile_times_every_dispatch_and_gives_the_outputs(self, device: Any) -> None:
        recording = device.load(chain(257, device.alignment, steps=4))
        x = whole(257)
        recording.inputs[0][...] = x
        times = recording.profile()
        if not times:
            pytest.skip(f"{device.info.name} has no timers")
        assert [t.label for t in times] == [f"step {i}" for i in range(4)]
        assert {t.kernel for t in times} == {"affine"}
        assert all(0 < t.seconds < 1 for t in times)
        assert (recording.outputs[0] == chain_expected(x, 4)).all()
        recording.run()
        assert (recording.outputs[0] == chain_expected(x, 4)).all()

    def test_more_dispatches_than_a_query_set_holds(self, device: Any) -> None:
        recording = device.load(chain(3, device.alignment, steps=1500))
        times = recording.profile()
        assert len(times) in (0, 1500)


class TestArena:
    """Regions are buffers of their own, as WebGPU wants, and are read through other names too."""

    def test_regions_that_overlay_each_other(self, device: Any) -> None:
        step = device.alignment
        made = plan(
            [
                dispatch(affine(64), 64, [InputRef(0), ArenaRef(0, 256)], "write all"),
                dispatch(affine(8, 1, 0), 8, [ArenaRef(step, 32), ArenaRef(512, 32)], "read part"),
                dispatch(affine(8, 1, 0), 8, [ArenaRef(512, 32), OutputRef(0)], "read it again"),
            ],
            [io("x", (64,))],
            [io("y", (8,))],
            arena=1024,
            alignment=step,
        )
        recording = device.load(made)
        x = whole(64)
        recording.inputs[0][...] = x
        recording.run()
        first = step // 4
        assert (recording.outputs[0] == x[first : first + 8] * 2 + 1).all()

    def test_a_region_read_and_written_by_one_dispatch(self, device: Any) -> None:
        made = plan(
            [
                dispatch(affine(33), 33, [InputRef(0), ArenaRef(0, 132)]),
                dispatch(affine(33), 33, [ArenaRef(0, 132), ArenaRef(0, 132)], "in place"),
                dispatch(affine(33), 33, [ArenaRef(0, 132), OutputRef(0)]),
            ],
            [io("x", (33,))],
            [io("y", (33,))],
            arena=256,
        )
        recording = device.load(made)
        x = whole(33)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x)).all()


class TestLimits:
    def test_an_unaligned_arena_offset(self, device: Any) -> None:
        bad = dispatch(affine(4), 4, [ArenaRef(4, 16), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=r"conv 7.*aligned"):
            device.load(plan([bad], outputs=[io("y", (4,))], arena=1024))

    def test_a_region_outside_the_arena(self, device: Any) -> None:
        bad = dispatch(affine(4), 4, [ArenaRef(1024, 16), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=r"conv 7.*1024 bytes"):
            device.load(plan([bad], outputs=[io("y", (4,))], arena=1024))

    @pytest.mark.parametrize(
        "refs", [[InputRef(0)], [InputRef(1), OutputRef(0)], [ConstRef(0), OutputRef(0)]]
    )
    def test_bindings_that_do_not_exist(self, device: Any, refs: Any) -> None:
        bad = plan([dispatch(affine(4), 4, refs, "conv 7")], [io("x", (4,))], [io("y", (4,))])
        with pytest.raises(DeviceError, match="conv 7"):
            device.load(bad)

    def test_too_large_a_buffer_is_refused_by_name(self, device: Any) -> None:
        huge = device.caps.max_buffer_bytes + device.alignment
        with pytest.raises(DeviceError, match=rf"the arena.*{huge}"):
            device.load(plan([], arena=huge))

    def test_too_many_workgroups_are_refused_by_name(self, device: Any) -> None:
        count = (device.caps.max_groups[0] + 1) * 32
        bad = dispatch(affine(4), count, [InputRef(0), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=r"conv 7.*workgroups of kernel affine"):
            device.load(plan([bad], [io("x", (4,))], [io("y", (4,))]))

    def test_caps_are_the_device_s(self, device: Any) -> None:
        assert isinstance(device, Device)
        assert device.info == registry().probe("wgpu").devices[0]
        assert device.caps.vendor == device.info.vendor
        assert device.caps.max_workgroup >= 64
        assert device.caps.max_buffer_bytes >= 1 << 24
        assert not device.caps.int8_storage
        assert device.alignment & (device.alignment - 1) == 0

    def test_an_index_out_of_range_lists_the_devices(self, device: Any) -> None:
        from tflgpu_wgpu.device import WgpuDevice

        with pytest.raises(DeviceError) as caught:
            WgpuDevice(10_000)
        assert f"0 = {device.info.name}" in str(caught.value)


class TestCompiling:
    def test_equal_sources_are_compiled_once(self, device: Any) -> None:
        kernels = [affine(8, 2), affine(8, 3), affine(8, 2), affine(8, 3)]
        made = plan(
            [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
            [io("x", (8,))],
            [io(f"y{i}", (8,)) for i in range(4)],
        )
        for _ in range(2):
            recording = device.load(made)
            recording.inputs[0][...] = np.arange(8)
            recording.run()
            for output, factor in zip(recording.outputs, (2, 3, 2, 3), strict=True):
                assert (output == np.arange(8) * factor + 1).all()
            assert device.compiled == 2

    def test_a_refusal_has_the_source_and_the_log(self, open_device: Callable[..., Any]) -> None:
        class Broken:
            def source(self, kernel: Kernel, *, writable: bool = False) -> str:
                return "@compute @workgroup_size(1) fn main() { undeclared_thing(); }"

        with pytest.raises(CompileError) as caught:
            open_device(dialect=Broken()).load(biased(8))
        message = str(caught.value)
        assert "refused kernel add" in message
        log, source = message.split("--- source\n")
        assert "undeclared_thing" in source
        assert "undeclared_thing" in log.split("--- log\n")[1]

    def test_source_is_what_is_compiled(self, open_device: Callable[..., Any]) -> None:
        from tflgpu_wgpu.dialect import WgslDialect

        seen: list[str] = []

        class Spy:
            def source(self, kernel: Kernel, *, writable: bool = False) -> str:
                seen.append(WgslDialect().source(kernel, writable=writable))
                return seen[-1]

        open_device(dialect=Spy()).load(biased(8))
        assert seen == [open_device().source(add(8))]


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
