"""The second cpu_ref device: plans run by the kernel language's NumPy interpreter.

It is slow on purpose. It is what tells whether a kernel is right on a machine without a GPU, and
what other backends are compared with.
"""

from __future__ import annotations

import numpy as np
from tflgpu.errors import CompileError, DeviceError, KernelError, StateError
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.check import check
from tflgpu.kernel.subgroup import LARGEST
from tflgpu.kernel.tree import Kernel
from tflgpu.runtime.protocols import DeviceInfo, Plan, PlannedDispatch, Recording

from tflgpu_cpu_ref.dump import dump
from tflgpu_cpu_ref.plugin import INTERPRETER as INFO
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
            raise DeviceError(f"backend {INFO.backend} has devices 0 and 1, not {index}")
        self.info = DeviceInfo(
            INFO.backend, INFO.index, INFO.name, driver=f"numpy {np.__version__}"
        )
        self.caps = CAPS
        self.alignment = 16
        self._closed = False

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        """Check every kernel and bind the plan to host arrays.

        Raises:
            StateError: the device is closed.
            CompileError: a kernel is ill-formed or over a limit of `caps`.
            DeviceError: a binding does not fit.
        """
        if self._closed:
            raise StateError("this cpu_ref device is closed")
        for dispatch in plan.dispatches:
            problem = self._problem(dispatch)
            if problem is not None:
                raise CompileError(f"{dispatch.label}: {problem}\n{self.source(dispatch.kernel)}")
        return CpuRefRecording(plan, guard_bands=guard_bands)

    def source(self, kernel: Kernel) -> str:
        """The kernel's tree as text."""
        return dump(kernel)

    def close(self) -> None:
        """Refuse further plans."""
        self._closed = True

    def _problem(self, dispatch: PlannedDispatch) -> str | None:
        kernel, caps = dispatch.kernel, self.caps
        try:
            check(kernel)
        except KernelError as error:
            return str(error)
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
        over = [f"{n} {what}, of which there can be {m}" for what, n, m in sizes if n > m]
        return f"kernel {kernel.name} has {'; '.join(over)}" if over else None
