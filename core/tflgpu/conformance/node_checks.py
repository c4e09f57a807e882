"""Level 1: every node of the kernel language, compiled and run, against the interpreter.

Functions are held to the accuracy of the OpenCL C specification (full profile, section 7.4), plus
what NumPy's own may be off. Where another API's specification asks for less (Vulkan and WGSL give
exp, log and atan2 more room near their zeros, and let fma round twice), the suite's own class for
transcendental functions is the limit, as it is for the ops made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO, Ref
from tflgpu.conformance.memory_nodes import HALVES, KERNELS, SIGNED, move, move_data
from tflgpu.conformance.node_table import (
    COUNT,
    GROUPS,
    build_table,
    result_of,
    table,
    table_arrays,
    ulps,
)
from tflgpu.conformance.plans import elementwise, io, plan
from tflgpu.conformance.programs import PROGRAMS, ProgramCase
from tflgpu.conformance.special_table import (
    build_special,
    special_arrays,
    special_cases,
    wrong_results,
)
from tflgpu.conformance.subgroup_nodes import SHAPES, InSubgroups, subgroup_programs
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar, Size3

_NUMPY_ULP = 4  # of NumPy's transcendental functions of f32
STORED = (Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16)


def node_checks() -> list[Check]:
    """Tables of operations, of them on special numbers, programs, moves of every type, single
    kernels, and shuffles."""
    checks = [
        Check(f"1/operations/{s.value}x{w}", partial(_with_kernels, partial(_table, s, w), s))
        for s in (Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16)
        for w in (1, 2, 3, 4)
    ]
    checks += [
        Check(f"1/special/{s.value}x{w}", partial(_with_kernels, partial(_special, s, w), s))
        for s in (Scalar.F32, Scalar.F16)
        for w in (1, 2, 3, 4)
    ]
    checks += [
        Check(f"1/programs/{make.__name__}", partial(_with_kernels, partial(_program, make), None))
        for make in PROGRAMS
    ]
    checks += [
        Check(
            f"1/memory/{s.value}x{w}/{'lanes' if lanes else 'vectors'}",
            partial(_with_kernels, partial(_memory, s, w, lanes, None), s),
        )
        for s in STORED
        for w in (1, 2, 4)
        for lanes in (False, True)
    ]
    # What a device stores and does not compute in is read as f32.
    checks += [
        Check(
            f"1/memory/f16x{w}/{'lanes' if lanes else 'vectors'}/as_f32",
            partial(_with_halves, partial(_memory, Scalar.F16, w, lanes, Scalar.F32)),
        )
        for w in (1, 2, 4)
        for lanes in (False, True)
    ]
    checks += [
        Check(f"1/kernels/{name}", partial(_with_halves, partial(_program, make)))
        for name, make in HALVES.items()
    ]
    checks += [
        Check(f"1/kernels/{name}", partial(_with_kernels, partial(_program, make), scalar))
        for name, (make, scalar) in KERNELS.items()
    ]
    checks += [
        Check(name, partial(_with_shuffles, partial(_in_subgroups, make), scalar))
        for name, make, scalar in subgroup_programs()
    ]
    return checks


def _with_kernels(
    check: Callable[[Device], None], scalar: Scalar | None, target: DeviceUnderTest
) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not kernels")
    lacking = _lacks(scalar, target.caps)
    if lacking is not None:
        return NotApplicable(f"{target.device.info.name} {lacking}")
    check(target.device)
    return None


def _with_halves(check: Callable[[Device], None], target: DeviceUnderTest) -> Outcome:
    if not target.caps.f16_storage:
        return NotApplicable(f"{target.device.info.name} does not store 16-bit floats")
    return _with_kernels(check, None, target)


def _with_shuffles(
    check: Callable[[Device], None], scalar: Scalar, target: DeviceUnderTest
) -> Outcome:
    if isinstance(target.device, Device) and not target.caps.subgroup_shuffle:
        lacking = "does not shuffle values among neighbours (caps.subgroup_shuffle)"
        return NotApplicable(f"{target.device.info.name} {lacking}")
    return _with_kernels(check, scalar, target)


def _lacks(scalar: Scalar | None, caps: DeviceCaps) -> str | None:
    if scalar is Scalar.F16 and not (caps.f16_storage and caps.f16_arithmetic):
        return "has no 16-bit arithmetic"
    if scalar in (Scalar.I8, Scalar.U8, Scalar.I16) and not caps.int8_storage:
        return "does not store small integers"
    return None


def run_kernel(
    device: Device, kernel: Kernel, groups: Size3, arrays: Sequence[Array]
) -> list[Array]:
    """The arrays after a kernel ran on a device; the given ones stay as they are.

    Read-only buffers become inputs of a plan and written ones outputs; what is read and written
    is copied from an input first.
    """
    made = kernel_plan(kernel, groups, arrays, device.alignment)
    with closing(device.load(made, guard_bands=True)) as recording:
        inputs = [a for b, a in zip(kernel.buffers, arrays, strict=True) if b.access != "write"]
        for target, array in zip(recording.inputs, inputs, strict=True):
            target[...] = array
        recording.run()
        outputs = iter([np.array(a) for a in recording.outputs])
        return [
            array if b.access == "read" else next(outputs)
            for b, array in zip(kernel.buffers, arrays, strict=True)
        ]


def kernel_plan(kernel: Kernel, groups: Size3, arrays: Sequence[Array], alignment: int) -> Plan:
    """The plan of `run_kernel`."""
    inputs: list[PlannedIO] = []
    outputs: list[PlannedIO] = []
    refs: list[Ref] = []
    dispatches: list[PlannedDispatch] = []
    for buffer, array in zip(kernel.buffers, arrays, strict=True):
        one = io(buffer.name, array.shape, DType.from_numpy(array.dtype))
        ref: Ref = InputRef(len(inputs))
        if buffer.access != "write":
            inputs.append(one)
        if buffer.access != "read":
            if buffer.access == "read_write":
                copy = elementwise(
                    "copy",
                    array.size,
                    lambda k, i, src: k.load(src, i),
                    scalar=buffer.scalar,
                )
                refs_of = (ref, OutputRef(len(outputs)))
                count = -(-array.size // 32)
                dispatches.append(PlannedDispatch(copy, (count, 1, 1), refs_of, "copy"))
            ref = OutputRef(len(outputs))
            outputs.append(one)
        refs.append(ref)
    dispatches.append(PlannedDispatch(kernel, groups, tuple(refs), kernel.name))
    return plan(dispatches, inputs, outputs, alignment=alignment)


def _table(scalar: Scalar, width: int, device: Device) -> None:
    """Every operation and function of a type and width, in one kernel."""
    cases = [c for c in table(scalar) if scalar is not Scalar.F16 or c.name != "fma"]
    kernel = build_table(cases, scalar, width)
    arrays, _ = table_arrays(cases, scalar, width, seed=1)
    found = run_kernel(device, kernel, GROUPS, arrays)
    interpret(kernel, GROUPS, arrays)
    off = {}
    for number, case in enumerate(cases):
        got, want = (result_of(cases, number, a, width) for a in (found, arrays))
        allowed = case.ulp + (_NUMPY_ULP if case.ulp else 0)
        if scalar is Scalar.F16:
            # Computed in f32 and rounded, or by the device's own operator, which OpenCL and
            # Vulkan have correctly rounded; WGSL ("Accuracy of Expressions") allows division
            # 2.5 ulp in both float types.
            allowed = 2.5 if case.name == "div" else 1 if case.ulp else 0
        distance = ulps(got, want)
        if distance > allowed and scalar is Scalar.F32 and case.ulp:
            own = [_operand(number, a, width) for a in arrays[:3]]
            distance = _beyond_class(case.name, got, want, own)
        if distance > allowed:
            off[case.name] = f"{distance:g} ulp, {allowed:g} allowed"
    if off:
        raise AssertionError("; ".join(f"{name} is off by {text}" for name, text in off.items()))


def _special(scalar: Scalar, width: int, device: Device) -> None:
    """NaN, infinities and other special numbers through every operation and function."""
    halves = device.caps.f16_storage and device.caps.f16_arithmetic
    cases = special_cases(scalar, halves=halves)
    kernel, groups = build_special(cases, scalar, width)
    found = run_kernel(device, kernel, groups, special_arrays(cases, scalar))
    wrong = wrong_results(cases, found)
    if wrong:
        raise AssertionError("; ".join(f"{name} gives {text}" for name, text in wrong.items()))


def _operand(number: int, array: Array, width: int) -> Array:
    """A case's part of an operand of the table."""
    lanes = COUNT * width
    return array[number * lanes : (number + 1) * lanes]


def _beyond_class(name: str, got: Array, want: Array, operands: Sequence[Array]) -> float:
    """The largest distance in ulp of the elements that the class does not excuse."""
    limit = Tolerance.transcendental()
    room = limit.atol + limit.rtol * np.abs(want.astype(np.float64))
    if name == "fma":
        # Two roundings: half an ulp of the product, and the sum's own.
        product = (operands[0] * operands[1]).astype(np.float32)
        room = np.spacing(np.abs(product)) + np.spacing(np.abs(want))
    excused = np.abs(got.astype(np.float64) - want) <= room
    return ulps(np.where(excused, want, got).astype(want.dtype), want)


def _program(make: Callable[[], ProgramCase], device: Device) -> None:
    _compare(device, make(), signs=make in SIGNED)


def _in_subgroups(make: InSubgroups, device: Device) -> None:
    for shape in SHAPES:
        _compare(device, make(device.caps.subgroup_shuffle, shape))


def _compare(device: Device, program: ProgramCase, *, signs: bool = False) -> None:
    got = run_kernel(device, program.kernel, program.groups, program.arrays)
    for index, want in program.want.items():
        name = program.kernel.buffers[index].name
        wrong = ~_identical(got[index], want, signs=signs)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise AssertionError(
                f"{program.kernel.name}: {name}[{at}] is {got[index][at]!r}, not {want[at]!r}"
            )


def _identical(got: Array, want: Array, *, signs: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where both are the same number, or none; with ``signs`` to the sign of zero."""
    equal = got == want
    if want.dtype.kind == "f":
        if signs:
            equal &= np.signbit(got) == np.signbit(want)
        equal |= np.isnan(got) & np.isnan(want)
    return np.asarray(equal)


def _memory(
    scalar: Scalar, width: int, lanes: bool, as_scalar: Scalar | None, device: Device
) -> None:
    data = move_data(scalar, 12 * width)
    made = move(scalar, width, lanes, as_scalar)
    got = run_kernel(device, made, (3, 1, 1), [data, np.zeros_like(data)])
    if got[1].tobytes() != data.tobytes():
        at = int(np.argmax(got[1] != data))
        raise AssertionError(f"{scalar.value}: {data[at]!r} came back as {got[1][at]!r}")
