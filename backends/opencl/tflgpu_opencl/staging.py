"""Host memory that OpenCL devices reach, and inputs and outputs in it.

With memory of its own the device gets copies, from and to pinned host memory that stays mapped.
Where host and device share memory, the buffer is made over the host's array and nothing is
copied: the array is handed over before a run and taken back after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.forks import keep_in_child
from tflgpu.backend_kit.host_memory import PAGE
from tflgpu.backend_kit.staging import CopiedInput, CopiedOutput, Staging
from tflgpu.compiler.plan import PlannedIO
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.memory import Memory, Region, in_lines
from tflgpu_opencl.native import native

READ, READ_WRITE = int(cl.map_flags.READ), int(cl.map_flags.READ | cl.map_flags.WRITE)


def staged(context: Any, memory: Memory, io: PlannedIO, *, is_input: bool) -> Staging[Commands]:
    """An input or output in memory of a recording's own.

    Raises:
        DeviceError: memory ran out.
    """
    name = f"{'input' if is_input else 'output'} {io.name}"
    if memory.in_place:
        return Shared(memory, io, name, READ_WRITE if is_input else READ)
    region = memory.new(name, io.nbytes, Use.STAGING)
    kind = CopiedInput[Commands] if is_input else CopiedOutput[Commands]
    return kind(pinned_array(context, memory.queue, io, memory.ledger), region)


class Mapped(Staging[Commands]):
    """Host memory that the device uses in place: handed over before a run and taken back after
    it."""

    def __init__(self, array: Array, region: Region, host: Bytes, flags: int) -> None:
        """``host`` is all the memory that the region is over."""
        super().__init__(array, region)
        self._host, self._flags = host, flags

    def before(self, commands: Commands) -> None:
        """Hand the memory to the device."""
        call = native().unmap(commands.queue, self.region.buffer, self._host)
        commands.append(call, "unmapping", self._host, self.region.buffer)

    def after(self, commands: Commands) -> None:
        """Take it back."""
        buffer, nbytes = self.region.buffer, self._host.nbytes
        call = native().map(commands.queue, buffer, nbytes, self._flags)
        commands.append(call, "mapping", self._host, buffer)

    def take(self, queue: Any) -> None:
        """Take it now, before the first run.

        Raises:
            DeviceError: the driver refused.
        """
        commands = Commands(queue)
        self.after(commands)
        commands.submit()
        with device_errors(f"mapping {self.region.name}"):
            queue.finish()


class Shared(Mapped):
    """A host array of the recording's own that the device uses in place."""

    is_shared = True

    def __init__(self, memory: Memory, io: PlannedIO, name: str, flags: int) -> None:
        host = _aligned(io.nbytes)
        array = host[: io.nbytes].view(io.dtype.numpy).reshape(io.shape)
        super().__init__(array, memory.over(name, host), host, flags)
        self._queue = memory.queue
        self.take(memory.queue)

    def release(self) -> None:
        """End the mapping."""
        commands = Commands(self._queue)
        self.before(commands)
        commands.submit()
        self._queue.finish()


def pinned_array(context: Any, queue: Any, io: PlannedIO, ledger: Ledger) -> Array:
    """A host array that drivers copy to and from at full speed, all zeros; counted in ``ledger``.

    Raises:
        DeviceError: memory ran out.
    """
    ledger.take(Use.STAGING, io.nbytes, f"host memory for {io.name}")
    if not io.nbytes:
        return np.zeros(io.shape, io.dtype.numpy)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    access = cl.map_flags.READ | cl.map_flags.WRITE
    with device_errors(f"pinning {io.nbytes} bytes for {io.name}"):
        pinned = cl.Buffer(context, flags, io.nbytes)
        # The mapping keeps the buffer, and every view of the array keeps the mapping.
        flat, _ = cl.enqueue_map_buffer(queue, pinned, access, 0, (io.nbytes,), np.uint8)
    keep_in_child(flat)
    flat[...] = 0
    found: Array = flat.view(io.dtype.numpy).reshape(io.shape)
    return found


def _aligned(nbytes: int) -> Bytes:
    size = in_lines(nbytes)
    memory = np.zeros(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]
