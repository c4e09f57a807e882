"""Level 0: the device contract of `tflgpu.runtime.protocols`, with plans made by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np

from tflgpu.conformance.check import Check, NotApplicable, Outcome
from tflgpu.conformance.plans import add, affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.conformance.target import Target
from tflgpu.errors import CompileError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.kernel.builder import Builder
from tflgpu.kernel.tree import Kernel, Name, Store
from tflgpu.kernel.types import F32, Scalar
from tflgpu.runtime.protocols import ConstRef, Device, InputRef, OutputRef, Plan

SIZES = (1, 3, 31, 257, 4099)


def device_checks() -> list[Check]:
    """Every check of the contract."""
    plain: list[Callable[[Device], None]] = [
        _several_inputs_and_outputs, _constants, _no_dispatches, _arrays_stay, _recordings_apart,
        _recording_closes_twice, _a_run_after_close,
    ]  # fmt: skip
    own: list[Callable[[Device], None]] = [
        _device_closes_twice,
        _a_load_after_close,
        _a_broken_kernel,
        _another_device,
    ]
    checks = [Check(f"0/round_trip/{n}", partial(_on, partial(_round_trip, n))) for n in SIZES]
    checks += [Check(f"0/chain/{n}", partial(_on, partial(_chain, n))) for n in SIZES]
    checks += [Check(f"0/round_trip_f16/{n}", partial(_halves, n)) for n in SIZES]
    checks += [Check(f"0/{f.__name__[1:]}", partial(_on, f)) for f in plain]
    checks += [Check(f"0/{f.__name__[1:]}", partial(_on_own, f)) for f in own]
    return [*checks, Check("0/capabilities", _capabilities)]


def _on(check: Callable[[Device], None], target: Target) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    check(target.device)
    return None


def _on_own(check: Callable[[Device], None], target: Target) -> Outcome:
    """For checks that close the device, or break it."""
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    other = target.reopen()
    try:
        assert isinstance(other.device, Device)
        check(other.device)
    finally:
        other.close()
    return None


def whole(count: int, seed: int = 0) -> Array:
    """Whole numbers as f32, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


def run_plan(device: Device, made: Plan, *inputs: Array) -> list[Array]:
    """The outputs of a plan."""
    recording = device.load(made)
    try:
        for target, array in zip(recording.inputs, inputs, strict=True):
            target[...] = array.reshape(target.shape)
        recording.run()
        return [np.array(a) for a in recording.outputs]
    finally:
        recording.close()


def _same(got: Array, want: Array, what: str) -> None:
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(
            f"{what}: {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        )
    if got.tobytes() != want.tobytes():
        at = int(np.argmax(got.reshape(-1) != want.reshape(-1)))
        raise AssertionError(
            f"{what}: element {at} is {got.reshape(-1)[at]!r}, not {want.reshape(-1)[at]!r}"
        )


def _refused(action: Callable[[], object], what: str) -> TflgpuError:
    """The error that an action ends in, which must be one of tflgpu's."""
    try:
        action()
    except TflgpuError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what} raised {error!r}, which is no TflgpuError") from error
    raise AssertionError(f"{what} raised nothing")


def _round_trip(count: int, device: Device) -> None:
    made = plan(
        [dispatch(affine(count, 1.0, 0.0), count, [InputRef(0), OutputRef(0)])],
        [io("x", (count,))], [io("y", (count,))], alignment=device.alignment,
    )  # fmt: skip
    recording = device.load(made)
    for seed in range(2):
        x = whole(count, seed)
        recording.inputs[0][...] = x
        recording.run()
        _same(np.array(recording.outputs[0]), x, f"{count} floats there and back")
    recording.close()


def _halves(count: int, target: Target) -> Outcome:
    """Odd numbers of 16-bit elements, whose buffers end in the middle of a word."""
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    if not target.caps.f16_storage:
        return NotApplicable("the device does not store 16-bit floats")
    k = Builder("halves", (32, 1, 1))
    src = k.buffer("src", Scalar.F16, 1, "read")
    dst = k.buffer("dst", Scalar.F16, 1, "write")
    i = k.global_id(0)
    with k.if_(i < count):
        k.store(dst, i, k.load(src, i, Scalar.F32))
    made = plan(
        [dispatch(k.build(), count, [InputRef(0), OutputRef(0)])],
        [io("x", (count,), DType.F16)], [io("y", (count,), DType.F16)],
        alignment=target.device.alignment,
    )  # fmt: skip
    x = whole(count).astype(np.float16)
    (y,) = run_plan(target.device, made, x)
    _same(y, x, f"{count} halves there and back")
    return None


def _chain(count: int, device: Device) -> None:
    """Dispatches that wait for each other, through the arena."""
    x = whole(count)
    (y,) = run_plan(device, chain(count, device.alignment, steps=6), x)
    _same(y, chain_expected(x, steps=6), f"a chain over {count} floats")


def _several_inputs_and_outputs(device: Device) -> None:
    made = plan(
        [
            dispatch(add(35, Scalar.I32), 35, [InputRef(0), InputRef(2), OutputRef(1)]),
            dispatch(add(35), 35, [InputRef(1), ConstRef(1), OutputRef(0)]),
        ],
        [io("i", (5, 7), DType.I32), io("f", (35,)), io("j", (1, 35, 1), DType.I32)],
        [io("g", (7, 5)), io("k", (35,), DType.I32)],
        constants=[np.ones(3, np.float32), whole(35, 9)], alignment=device.alignment,
    )  # fmt: skip
    i, j = np.random.default_rng(5).integers(-(2**30), 2**30, (2, 35)).astype(np.int32)
    f = whole(35, 4)
    g, k = run_plan(device, made, i, f, j)
    _same(g, (f + whole(35, 9)).reshape(7, 5), "the first output")
    _same(k, i + j, "the second output")


def _constants(device: Device) -> None:
    x = whole(101)
    (y,) = run_plan(device, attrs.evolve(biased(101), alignment=device.alignment), x)
    _same(y, x + np.arange(101, dtype=np.float32), "a sum with a constant")


def _no_dispatches(device: Device) -> None:
    made = plan([], [io("x", (5,))], [], arena=device.alignment, alignment=device.alignment)
    run_plan(device, made, whole(5))
    run_plan(device, plan([], alignment=device.alignment))


def _arrays_stay(device: Device) -> None:
    recording = device.load(attrs.evolve(biased(65), alignment=device.alignment))
    arrays = [*recording.inputs, *recording.outputs]
    before = [a.ctypes.data for a in arrays]
    x = whole(65)
    recording.inputs[0][...] = x
    recording.run()
    recording.run()
    after = [a.ctypes.data for a in (*recording.inputs, *recording.outputs)]
    assert after == before, "host arrays moved between runs"
    _same(np.array(recording.inputs[0]), x, "an input after two runs")
    recording.close()


def _recordings_apart(device: Device) -> None:
    made = attrs.evolve(biased(33), alignment=device.alignment)
    first, second = device.load(made), device.load(made)
    first.inputs[0][...] = 1
    second.inputs[0][...] = 2
    first.run()
    second.run()
    assert (second.outputs[0] - first.outputs[0] == 1).all(), "two recordings share memory"
    first.close()
    second.run()
    second.close()


def _recording_closes_twice(device: Device) -> None:
    recording = device.load(attrs.evolve(biased(9), alignment=device.alignment))
    recording.run()
    recording.close()
    recording.close()


def _a_run_after_close(device: Device) -> None:
    recording = device.load(attrs.evolve(biased(9), alignment=device.alignment))
    recording.close()
    _refused(recording.run, "running a closed recording")


def _device_closes_twice(device: Device) -> None:
    device.close()
    device.close()


def _a_load_after_close(device: Device) -> None:
    made = attrs.evolve(biased(9), alignment=device.alignment)
    device.close()
    _refused(lambda: device.load(made), "loading on a closed device")


def _another_device(device: Device) -> None:
    """That a second device of the same index opens and works beside the first."""
    _round_trip(31, device)


def broken(name: str = "ill_formed") -> Kernel:
    """A kernel that stores a variable which nobody declared: no driver can compile it."""
    kernel = affine(8, name=name)
    out = kernel.buffers[1]
    wrong = Store(out, Name(F32, "never_declared"), Name(F32, "never_declared"))
    return attrs.evolve(kernel, body=(*kernel.body, wrong))


def _a_broken_kernel(device: Device) -> None:
    kernel = broken()
    made = plan(
        [dispatch(kernel, 8, [InputRef(0), OutputRef(0)])],
        [io("x", (8,))], [io("y", (8,))], alignment=device.alignment,
    )  # fmt: skip
    error = _refused(lambda: device.load(made), "loading a kernel that cannot be compiled")
    text = str(error)
    assert kernel.name in text, f"the error does not name the kernel: {text[:200]}"
    if isinstance(error, CompileError):
        assert len(text.splitlines()) > 1, f"a CompileError carries source and log: {text[:200]}"
        source = device.source(kernel).strip().splitlines()
        assert source[-1].strip() in text, "a CompileError carries the source that was refused"


def _capabilities(target: Target) -> Outcome:
    """Limits below which no shipped kernel runs."""
    caps = target.caps
    assert caps.max_bindings >= 4, f"max_bindings is {caps.max_bindings}"
    assert caps.max_workgroup >= 64, f"max_workgroup is {caps.max_workgroup}"
    assert all(n >= 1 for n in caps.max_workgroup_size), str(caps.max_workgroup_size)
    assert target.device.info.backend == target.backend, str(target.device.info)
    assert target.device.info.index == target.index, str(target.device.info)
    if isinstance(target.device, Device):
        assert target.device.alignment >= 4, f"alignment is {target.device.alignment}"
    return None
