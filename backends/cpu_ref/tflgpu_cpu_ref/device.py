"""The second cpu_ref device: plans run by the kernel language's NumPy interpreter.

It is slow on purpose. It is what tells whether a kernel is right on a machine without a GPU, and
what other backends are compared with.
"""

from __future__ import annotations

import numpy as np
from tflgpu.backend_kit.base_buffer import host_bytes
from tflgpu.backend_kit.base_device import BaseDevice
from tflgpu.compiler.plan import Plan
from tflgpu.errors import CompileError, DeviceError, KernelError
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.check import check
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import LARGEST_GROUP
from tflgpu.lowering.reason import Unsupported

from tflgpu_cpu_ref.dump import dump
from tflgpu_cpu_ref.memory import Block, HostBuffer, Memory
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
    subgroup_shuffle=LARGEST_GROUP,
)


class CpuRefDevice(BaseDevice):
    """A `Device` without hardware."""

    kind = "cpu_ref"

    def __init__(self, index: int = 1) -> None:
        """Open it.

        Raises:
            DeviceError: ``index`` is that of no cpu_ref device.
        """
        if index != INFO.index:
            there = ", ".join(f"{d.index} = {d.name}" for d in (REFERENCES, INFO))
            raise DeviceError(f"backend {INFO.backend} has no device {index}; there are {there}")
        super().__init__()
        self.info = INFO
        self.caps = CAPS
        self.alignment = 16

    def source(self, kernel: Kernel) -> str:
        """The kernel's tree as text."""
        return dump(kernel)

    def _allocate_buffer(self, nbytes: int) -> HostBuffer:
        try:
            memory = np.zeros(nbytes, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"allocating {nbytes} bytes for a buffer: {error}") from error
        return HostBuffer(self._lock, self._token, nbytes, Block("a buffer", memory))

    def _import_buffer(self, source: object) -> HostBuffer | Unsupported:
        memory = host_bytes(source)
        if isinstance(memory, Unsupported):
            return memory
        block = Block("an imported buffer", memory)
        return HostBuffer(self._lock, self._token, memory.nbytes, block)

    def _load(self, plan: Plan, *, guard_bands: bool) -> CpuRefRecording:
        """Check every kernel and bind the plan to host arrays."""
        for dispatch in plan.dispatches:
            try:
                check(dispatch.kernel)
            except KernelError as error:
                source = self.source(dispatch.kernel)
                raise CompileError(f"{dispatch.label}: {error}\n{source}") from error
        limit = self.caps.max_buffer_bytes
        memory = Memory(
            plan,
            limit=limit,
            guarded=guard_bands,
            ledger=self._account.ledger(),
            shared=self._weights,
        )
        return CpuRefRecording(plan, memory)
