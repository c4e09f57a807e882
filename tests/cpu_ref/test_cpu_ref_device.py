"""The kernel interpreter as a device: it computes, and it refuses what a GPU would not notice."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit.plan_memory import LEAST_BAND
from tflgpu.compiler.plan import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
)
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import CompileError, DeviceError, StateError
from tflgpu.ir.dtypes import DType
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar
from tflgpu.options import DelegateOptions
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu_cpu_ref import plugin
from tflgpu_cpu_ref.device import CpuRefDevice
from tflgpu_cpu_ref.memory import Memory
from tflgpu_cpu_ref.recording import CpuRefRecording

from tests.running import allocated
from tests.small_models import small_model

N = 13


def affine(shift: int = 0) -> Kernel:
    """``dst[i] = src[i] * c[i] + 1``, written ``shift`` elements further on."""
    k = Builder("affine", (8, 1, 1))
    src = k.buffer("src", Scalar.F32, 1, "read")
    c = k.buffer("c", Scalar.F32, 1, "read")
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.global_id(0)
    with k.if_(i < N):
        k.store(dst, i + shift, k.load(src, i) * k.load(c, i) + 1.0)
    return k.build()


def plan_of(first: Kernel | None = None, second: Kernel | None = None) -> Plan:
    """Two launches of a kernel, the first into the arena, the second out of it."""
    c = np.arange(N, dtype=np.float32)
    io = PlannedIO("x", (1, N), DType.F32, 4 * N)
    arena = ArenaRef(16, 4 * N)
    launches = (
        PlannedDispatch(first or affine(), (2, 1, 1), (InputRef(0), ConstRef(0), arena), "#0 MUL"),
        PlannedDispatch(
            second or affine(), (2, 1, 1), (arena, ConstRef(1), OutputRef(0)), "#1 MUL"
        ),
    )
    out = attrs.evolve(io, name="y")
    return Plan(16 + 4 * N + 12, 16, (c, c + 1), (io,), (out,), launches)


def with_refs(plan: Plan, *refs: object) -> Plan:
    """The plan with other bindings of its first launch."""
    first = attrs.evolve(plan.dispatches[0], refs=tuple(refs))
    return attrs.evolve(plan, dispatches=(first, *plan.dispatches[1:]))


@pytest.mark.parametrize("guard_bands", [False, True])
def test_a_plan_runs_again_and_again(guard_bands: bool) -> None:
    recording = CpuRefDevice().load(plan_of(), guard_bands=guard_bands)
    c = np.arange(N, dtype=np.float32)
    (source,), (result,) = recording.inputs, recording.outputs
    address = result.ctypes.data
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, N)).astype(np.float32)
        source[...] = x
        recording.run()
        assert result.shape == (1, N)
        np.testing.assert_array_equal(result, (x * c + np.float32(1)) * (c + 1) + np.float32(1))
        np.testing.assert_array_equal(source, x)
    assert recording.outputs[0].ctypes.data == address


def test_it_is_a_device_and_says_what_it_is() -> None:
    device = CpuRefDevice()
    assert isinstance(device, Device)
    assert (device.info.backend, device.info.index, device.info.is_gpu) == ("cpu_ref", 1, False)
    assert device.caps.f16_arithmetic
    assert not device.caps.is_gpu
    assert device.caps.max_workgroup == 256


def test_profile_times_every_dispatch_and_computes() -> None:
    recording = CpuRefDevice().load(plan_of())
    recording.inputs[0][...] = 2.0
    times = recording.profile()
    assert [t.label for t in times] == ["#0 MUL", "#1 MUL"]
    assert all(t.seconds > 0 for t in times)
    assert recording.outputs[0][0, 1] == (2 * 1 + 1) * 2 + 1


def test_a_write_out_of_bounds_is_an_error_that_names_node_and_buffer() -> None:
    recording = CpuRefDevice().load(plan_of(second=affine(shift=1)), guard_bands=True)
    with pytest.raises(DeviceError, match=r"#1 MUL.*affine.*dst\[13\] of 13"):
        recording.run()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.run()


def test_reading_what_was_not_written_gives_nan() -> None:
    k = Builder("nothing", (8, 1, 1))
    for name in ("src", "c"):
        k.buffer(name, Scalar.F32, 1, "read")
    k.buffer("dst", Scalar.F32, 1, "write")
    recording = CpuRefDevice().load(plan_of(first=k.build()))
    recording.run()
    assert np.isnan(recording.outputs[0]).all()


def test_a_damaged_guard_band_is_found() -> None:
    recording = CpuRefDevice().load(plan_of(), guard_bands=True)
    assert isinstance(recording, CpuRefRecording)
    base = recording.outputs[0]
    while isinstance(base.base, np.ndarray):
        base = base.base
    base[-LEAST_BAND] ^= 0xFF
    with pytest.raises(DeviceError, match=r"#1 MUL.*: 1 bytes after output y .* offset 52 of 52"):
        recording.run()


@pytest.mark.parametrize("side", ["before", "after"])
def test_damage_says_where(side: str) -> None:
    memory = Memory(plan_of(), limit=1 << 20, guarded=True)
    (block,) = memory.inputs
    block.view(np.dtype(np.float32))[...] = 7
    assert memory.damage(block) is None
    block.whole[LEAST_BAND - 3 if side == "before" else LEAST_BAND + 4 * N + 2] ^= 0xFF
    offset = -3 if side == "before" else 4 * N + 2
    damage = memory.damage(block)
    assert damage is not None
    assert re.match(rf"1 bytes {side} input x .* offset {offset} of 52", damage)


def with_nine_buffers(kernel: Kernel) -> Kernel:
    source = kernel.buffers[0]
    more = tuple(attrs.evolve(source, name=f"more{i}") for i in range(6))
    return attrs.evolve(kernel, buffers=kernel.buffers + more)


def bad_alignment(plan: Plan) -> Plan:
    return with_refs(plan, InputRef(0), ConstRef(0), ArenaRef(4, 4 * N))


def bad_arena(plan: Plan) -> Plan:
    return with_refs(plan, InputRef(0), ConstRef(0), ArenaRef(64, 4 * N))


def bad_count(plan: Plan) -> Plan:
    return with_refs(plan, InputRef(0), ConstRef(0))


def bad_overlap(plan: Plan) -> Plan:
    return with_refs(plan, ArenaRef(0, 4 * N), ConstRef(0), ArenaRef(16, 4 * N))


def bad_constant(plan: Plan) -> Plan:
    return with_refs(plan, InputRef(0), ConstRef(0), ConstRef(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bad_alignment, "#0 MUL: dst is at arena offset 4"),
        (bad_arena, "#0 MUL: dst is bytes 64 to 116 of an arena of 80"),
        (bad_count, "2 bindings for the 3 buffers"),
        (bad_overlap, "dst of kernel affine is written and overlaps"),
        (bad_constant, "dst is bound to a constant"),
    ],
)
def test_wrong_bindings_are_refused_at_load(change: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        CpuRefDevice().load(change(plan_of()))


def nine_buffers(kernel: Kernel) -> Kernel:
    more = [attrs.evolve(kernel.buffers[0], name=f"extra{i}") for i in range(6)]
    return attrs.evolve(kernel, buffers=(*kernel.buffers, *more))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: attrs.evolve(k, workgroup=(512, 1, 1)), "512 invocations in a workgroup"),
        (lambda k: attrs.evolve(k, workgroup=(1, 1, 65)), "65 invocations .* along z"),
        (nine_buffers, "9 buffers, of which there can be 8"),
    ],
)
def test_limits_are_checked_with_the_source_in_the_message(
    change: Callable[[Kernel], Kernel], message: str
) -> None:
    plan = plan_of(first=change(affine()))
    with pytest.raises(CompileError, match=message) as caught:
        CpuRefDevice().load(plan)
    assert "dst[" in str(caught.value)


def test_too_many_workgroups_are_refused() -> None:
    plan = plan_of()
    first = attrs.evolve(plan.dispatches[0], groups=(1, 65536, 1))
    with pytest.raises(CompileError, match="65536 workgroups along y"):
        CpuRefDevice().load(attrs.evolve(plan, dispatches=(first,)))


def test_closed_things_say_so() -> None:
    device = CpuRefDevice()
    recording = device.load(plan_of())
    recording.close()
    recording.close()
    with pytest.raises(StateError, match="recording is closed"):
        recording.run()
    device.close()
    with pytest.raises(StateError, match="device is closed"):
        device.load(plan_of())


@pytest.mark.parametrize(("backend", "index"), [("cpu_ref", 0), ("cpu_ref", 1), ("litert", 0)])
def test_nothing_runs_on_a_closed_delegate(backend: str, index: int) -> None:
    """Devices that run nodes refuse as those do that run kernels."""
    model = small_model({"x": (1, 3), "y": (1, 3)}, "y = TANH(x)")
    delegate = tflgpu.GpuDelegate(backend=backend, device=index, partitioning="all")
    with allocated(
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
    ) as interpreter:
        interpreter.invoke()
        delegate.close()
        for use in (interpreter.invoke, interpreter.allocate_tensors):
            with pytest.raises(StateError, match="delegate is closed after the interpreters"):
                use()


def test_source_shows_buffers_and_statements() -> None:
    text = CpuRefDevice().source(affine())
    assert "kernel affine workgroup (8, 1, 1)" in text
    assert "read src: f32x1[]" in text
    assert "if (global_id.x lt 13)" in text
    assert "((src[global_id.x] mul c[global_id.x]) add 1.0)" in text


def test_the_plugin_answers_for_its_own_backend_only() -> None:
    (info,) = plugin.tflgpu_register_backends()
    assert (info.name, info.rank, info.requires) == ("cpu_ref", -100, ())
    assert plugin.tflgpu_probe("opencl") is None
    assert plugin.tflgpu_open_device("opencl", 0, DelegateOptions()) is None
    probe = plugin.tflgpu_probe("cpu_ref")
    assert probe is not None
    assert probe.available
    assert [d.index for d in probe.devices] == [0, 1]
    assert isinstance(plugin.tflgpu_open_device("cpu_ref", 0, DelegateOptions()), NodeDevice)
    opened = plugin.tflgpu_open_device("cpu_ref", 1, DelegateOptions())
    assert isinstance(opened, CpuRefDevice)
    with pytest.raises(DeviceError, match=r"no device 2; there are 0 = .*, 1 = "):
        plugin.tflgpu_open_device("cpu_ref", 2, DelegateOptions())


def test_hooks_are_marked() -> None:
    name = f"{hookimpl.project_name}_impl"
    hooks = [f for n, f in vars(plugin).items() if n.startswith("tflgpu_") and callable(f)]
    assert len(hooks) == 4
    assert all(hasattr(h, name) for h in hooks)


def test_an_ill_formed_kernel_is_a_compile_error() -> None:
    kernel = affine()
    unbound = attrs.evolve(kernel, buffers=kernel.buffers[::2])  # without c
    with pytest.raises(CompileError, match="load from c, which is not a readable buffer"):
        CpuRefDevice().load(with_refs(plan_of(first=unbound), InputRef(0), ArenaRef(16, 4 * N)))
