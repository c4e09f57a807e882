"""The second cpu_ref device: plans run by the kernel language's NumPy interpreter.

It is slow on purpose. It is what tells whether a kernel is right on a machine without a GPU, and
what other backends are compared with.
"""

from __future__ import annotations

import weakref

from tflgpu.errors import CompileError, DeviceError, KernelError, StateError
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.check import check
from tflgpu.kernel.subgroup import LARGEST
from tflgpu.kernel.tree import Kernel
from tflgpu.runtime.check_plan import check_plan
from tflgpu.runtime.protocols import Plan, Recording

from tflgpu_cpu_ref.dump import dump
from tflgpu_cpu_ref.plugin import INTERPRETER as INFO
from tflgpu_cpu_ref.plugin import REFERENCES
from tflgpu_cpu_ref.recording import CpuRefRecording

# What every GPU API guarantees, not what NumPy could do: a kernel that passes here is portable.
CAPS = DeviceCaps(
    f16_storage=True,
    f16_arithmetic=True,
    int8_storage=True,
    max_workgroup=256,
    shared_bytes=48 * 1024,
    max_buffer_bytes=1 << 31,
    subgroup_shuffle=LARGEST,
)


class CpuRefDevice:
    """A `Device` without hardware."""

    def __init__(self, index: int = 1) -> None:
        """Open it.

        Raises:
            DeviceError: ``index`` is that of no cpu_ref device.
        """
        if index != INFO.index:
            there = ", ".join(f"{d.index} = {d.name}" for d in (REFERENCES, INFO))
            raise DeviceError(f"backend {INFO.backend} has no device {index}; there are {there}")
        self.info = INFO
        self.caps = CAPS
        self.alignment = 16
        self._recordings: weakref.WeakSet[CpuRefRecording] = weakref.WeakSet()
        self._closed = False

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        """Check every kernel and bind the plan to host arrays.

        Raises:
            StateError: the device is closed.
            CompileError: a kernel is ill-formed or over a limit of `caps`.
            DeviceError: a binding does not fit, or memory ran out.
        """
        if self._closed:
            raise StateError("this cpu_ref device is closed")
        check_plan(plan, self)
        for dispatch in plan.dispatches:
            try:
                check(dispatch.kernel)
            except KernelError as error:
                source = self.source(dispatch.kernel)
                raise CompileError(f"{dispatch.label}: {error}\n{source}") from error
        recording = CpuRefRecording(plan, guard_bands=guard_bands)
        self._recordings.add(recording)
        return recording

    def source(self, kernel: Kernel) -> str:
        """The kernel's tree as text."""
        return dump(kernel)

    def close(self) -> None:
        """Close what was loaded, and refuse further plans; twice is harmless."""
        self._closed = True
        for recording in list(self._recordings):
            recording.close()
