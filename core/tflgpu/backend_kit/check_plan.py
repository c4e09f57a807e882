"""Checks that a plan is consistent and fits a device; every backend asks before it loads one.

Drivers check little of it: some crash, some compute with what lies beside a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, Plan, PlannedDispatch, Ref
from tflgpu.contract.device import Device
from tflgpu.errors import CompileError, DeviceError, TflgpuError
from tflgpu.language.caps import DeviceCaps

if TYPE_CHECKING:
    from tflgpu.language.buffers import KernelBuffer

#: Bytes of a plan's constants, inputs and outputs, by what refers to them.
_Sizes = Mapping[type, Sequence[int]]


def check_plan(plan: Plan, device: Device) -> None:
    """Look at every dispatch of a plan.

    Raises:
        DeviceError: a dispatch binds what is not there, or more than the device can bind; names
            the dispatch and the buffer.
        CompileError: a kernel is over a limit of the device's `caps`; names the dispatch and the
            kernel, and has its source where it can be printed.
    """
    sizes: _Sizes = {
        ConstRef: plan.constants.sizes,
        InputRef: [io.nbytes for io in plan.inputs],
        OutputRef: [io.nbytes for io in plan.outputs],
    }
    for dispatch in plan.dispatches:
        over = _over_limits(dispatch, device.caps)
        if over:
            message = f"{dispatch.label}: kernel {dispatch.kernel.name} has {'; '.join(over)}"
            raise CompileError(message + _source(dispatch, device))
        _check_bindings(dispatch, plan, sizes, device)


def _over_limits(dispatch: PlannedDispatch, caps: DeviceCaps) -> list[str]:
    kernel = dispatch.kernel
    x, y, z = kernel.workgroup
    sizes = [
        ("invocations in a workgroup", x * y * z, caps.max_workgroup),
        ("buffers", len(kernel.buffers), caps.max_bindings),
        ("bytes of shared memory", kernel.shared_bytes, caps.shared_bytes),
    ]
    axes = zip("xyz", kernel.workgroup, caps.max_workgroup_size, strict=True)
    sizes += [(f"invocations in a workgroup along {a}", n, m) for a, n, m in axes]
    groups = zip("xyz", dispatch.groups, caps.max_groups, strict=True)
    sizes += [(f"workgroups along {a}", n, m) for a, n, m in groups]
    return [f"{n} {what}, of which there can be {m}" for what, n, m in sizes if n > m]


def _source(dispatch: PlannedDispatch, device: Device) -> str:
    try:
        return f"\n--- source\n{device.source(dispatch.kernel)}"
    except TflgpuError:
        return ""


def _check_bindings(dispatch: PlannedDispatch, plan: Plan, sizes: _Sizes, device: Device) -> None:
    buffers, refs = dispatch.kernel.buffers, dispatch.refs
    if len(buffers) != len(refs):
        raise DeviceError(
            f"{dispatch.label}: {len(refs)} bindings for the {len(buffers)} buffers of kernel "
            f"{dispatch.kernel.name}"
        )
    for buffer, ref in zip(buffers, refs, strict=True):
        problem = _misfit(buffer, ref, plan, sizes, device)
        if problem is not None:
            raise DeviceError(f"{dispatch.label}: {buffer.name} {problem}")


#: What helps where a plan is too large for a device; the end of a message.
SMALLER = (
    "; smaller inputs, precision='f16' (which halves it), another backend or device, or a delegate "
    "without backend= and device= (which leaves such a part to the CPU) would help"
)


def _misfit(
    buffer: KernelBuffer, ref: Ref, plan: Plan, sizes: _Sizes, device: Device
) -> str | None:
    if isinstance(ref, ArenaRef):
        # A plan without arenas has one of no bytes, in which empty tensors lie.
        sizes_of = plan.arenas or (0,)
        if not 0 <= ref.arena < len(sizes_of):
            return f"is in arena {ref.arena}, and the plan has {len(plan.arenas)} of them"
        size, end = sizes_of[ref.arena], ref.offset + ref.nbytes
        if ref.offset < 0 or ref.nbytes < 0 or end > size:
            return f"is bytes {ref.offset} to {end} of an arena of {size} bytes"
        if ref.offset % device.alignment:
            return (
                f"is at arena offset {ref.offset}, which is not aligned to the device's "
                f"{device.alignment} bytes"
            )
        nbytes = ref.nbytes
    else:
        there = sizes[type(ref)]
        if not 0 <= ref.index < len(there):
            return f"is bound to {ref}, and the plan has {len(there)} of them"
        if isinstance(ref, ConstRef) and buffer.access != "read":
            return "is bound to a constant but not read only"
        nbytes = there[ref.index]
    most = device.caps.max_buffer_bytes
    if nbytes > most:
        return f"takes {nbytes} bytes, and the device's buffers have at most {most}{SMALLER}"
    return None
