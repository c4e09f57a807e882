"""The Vulkan device against the device contract, with plans made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.plans import (
    add,
    affine,
    biased,
    chain,
    chain_expected,
    dispatch,
    io,
    plan,
    stray,
)
from tflgpu.errors import CompileError, DeviceError
from tflgpu.ir.dtypes import DType
from tflgpu.kernel import Builder
from tflgpu.kernel.types import F32x4, Scalar
from tflgpu.plugins import registry
from tflgpu.runtime.protocols import ArenaRef, ConstRef, Device, InputRef, OutputRef, Ref

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

    def test_a_chain_of_large_steps(self, device: Any) -> None:
        """Each step reads what the last workgroups of the one before wrote: without a barrier it
        would read them too early (or, of the step before that, what the arena held)."""
        count, steps = 1 << 20, 12
        recording = device.load(_backwards(count, device.alignment, steps))
        x = whole(count)
        for _ in range(3):
            recording.inputs[0][...] = x
            recording.run()
            assert (recording.outputs[0] == x + steps).all()

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
        made = device.load(
            plan(
                [
                    dispatch(add(35, Scalar.I32), 35, [InputRef(0), InputRef(2), OutputRef(1)]),
                    dispatch(add(35), 35, [InputRef(1), ConstRef(1), OutputRef(0)]),
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

    def test_constants_larger_than_a_piece_of_the_upload(
        self, device: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tflgpu_vulkan import memory

        monkeypatch.setattr(memory, "_UPLOAD_PIECE", 1000)
        constants = [whole(1999, 1), whole(3, 2), whole(0), whole(507, 3)]
        refs: list[list[Ref]] = [[ConstRef(i), OutputRef(i)] for i in range(4)]
        made = plan(
            [dispatch(affine(c.size, 1, 0), c.size, r)
             for c, r in zip(constants, refs, strict=True)],
            outputs=[io(f"y{i}", (c.size,)) for i, c in enumerate(constants)],
            constants=constants,
        )  # fmt: skip
        recording = device.load(made)
        recording.run()
        for got, want in zip(recording.outputs, constants, strict=True):
            assert (got == want).all()

    def test_half_is_stored_whatever_the_device_computes_in(self, device: Any) -> None:
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
        for _ in range(2):
            times = recording.profile()
            assert [(t.label, t.kernel) for t in times] == [
                (f"step {i}", "affine") for i in range(4)
            ]
            assert all(0 < t.seconds < 1 for t in times)
            assert (recording.outputs[0] == chain_expected(x, 4)).all()
        recording.run()
        assert (recording.outputs[0] == chain_expected(x, 4)).all()


def _backwards(count: int, alignment: int, steps: int) -> Any:
    """``steps`` times ``x + 1``, each step turning the order of the elements around."""
    k = Builder("backwards", (32, 1, 1))
    src = k.buffer("src", Scalar.F32, 1, "read")
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < count):
        k.store(dst, i, k.load(src, count - 1 - i) + 1.0)
    kernel = k.build()
    stride = -(-count * 4 // alignment) * alignment
    arena = [ArenaRef(i * stride, count * 4) for i in range(2)]
    refs: list[Ref] = [InputRef(0), *(arena[i % 2] for i in range(steps - 1)), OutputRef(0)]
    return plan(
        [dispatch(kernel, count, refs[i : i + 2], f"step {i}") for i in range(steps)],
        [io("x", (count,))],
        [io("y", (count,))],
        arena=2 * stride,
        alignment=alignment,
    )


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

    def test_too_large_a_binding_is_refused_by_name(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        huge = device.caps.max_buffer_bytes + device.alignment
        bad = dispatch(affine(4), 4, [ArenaRef(0, huge), OutputRef(0)], "conv 7")
        with pytest.raises(DeviceError, match=rf"(conv 7|the arena).*{huge}"):
            device.load(plan([bad], outputs=[io("y", (4,))], arena=huge))

    def test_more_memory_than_there_is(self, open_device: Callable[..., Any]) -> None:
        with pytest.raises(DeviceError, match="the arena takes 4611686018427387904 bytes"):
            open_device().load(plan([], arena=1 << 62))

    def test_more_than_the_device_runs(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        groups = plan(
            [dispatch(affine(4), 32 * (device.caps.max_groups[0] + 1), [InputRef(0), OutputRef(0)],
                      "conv 3")],
            [io("x", (4,))], [io("y", (4,))],
        )  # fmt: skip
        if device.caps.max_groups[0] < 2**31 - 1:
            with pytest.raises(CompileError, match=r"conv 3.*workgroups"):
                device.load(groups)
        k = Builder("greedy", (32, 1, 1))
        dst = k.buffer("dst", Scalar.F32, 1, "write")
        tile = k.shared("tile", F32x4, device.caps.shared_bytes)
        k.store_shared(tile, 0, k.const(1.0, F32x4))
        k.store(dst, 0, k.load_shared(tile, 0).lane(0))
        greedy = plan([dispatch(k.build(), 4, [OutputRef(0)], "conv 4")], outputs=[io("y", (4,))])
        with pytest.raises(CompileError, match=r"conv 4: kernel greedy has .* shared memory"):
            device.load(greedy)

    def test_caps_are_the_device_s(self, open_device: Callable[..., Any]) -> None:
        device = open_device()
        assert isinstance(device, Device)
        assert device.info == registry().probe("vulkan").devices[0]
        assert device.caps.vendor == device.info.vendor
        assert device.caps.is_gpu == device.info.is_gpu
        assert device.caps.max_workgroup >= 128  # what Vulkan guarantees
        assert device.caps.shared_bytes >= 16384
        assert device.caps.max_buffer_bytes >= 1 << 27
        assert device.caps.max_bindings >= 4
        assert device.alignment & (device.alignment - 1) == 0

    def test_an_index_out_of_range_lists_the_devices(self, open_device: Callable[..., Any]) -> None:
        from tflgpu_vulkan.device import VulkanDevice

        name = open_device().info.name
        with pytest.raises(DeviceError) as caught:
            VulkanDevice(10_000)
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
