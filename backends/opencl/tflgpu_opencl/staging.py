"""Where the host writes inputs and reads outputs.

With memory of its own the device gets copies, from and to pinned host memory that stays mapped.
Where host and device share memory, the buffer is made over the host's array and nothing is
copied: the array is handed over before a run and taken back after it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyopencl as cl
from tflgpu.compiler.plan import PlannedIO
from tflgpu.contract.forks import keep_in_child
from tflgpu.contract.memory_use import Ledger, Use
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.memory import Memory, Region, in_lines
from tflgpu_opencl.native import Native

#: Where host memory begins that drivers use in place.
_PAGE = 4096


class Staging(Protocol):
    """One input or output: a host array and a device buffer."""

    array: Array
    region: Region

    def before(self, commands: Commands) -> None:
        """Add what happens before the kernels."""
        ...

    def after(self, commands: Commands) -> None:
        """Add what happens after the kernels."""
        ...

    def release(self) -> None:
        """Let go of the buffer, which is freed next; the array lives as long as someone holds it."""
        ...


class Copied:
    """A device buffer and a pinned host array."""

    def __init__(
        self, context: Any, queue: Any, memory: Memory, io: PlannedIO, *, is_input: bool
    ) -> None:
        self._is_input = is_input
        self.region = memory.new(_name(io, is_input), io.nbytes)
        self.array: Array = pinned_array(context, queue, io, memory.ledger)

    def before(self, commands: Commands) -> None:
        """Upload an input."""
        if self._is_input:
            commands.write(self.region.buffer, self.array)

    def after(self, commands: Commands) -> None:
        """Download an output."""
        if not self._is_input:
            commands.read(self.region.buffer, self.array)

    def release(self) -> None:
        """Nothing holds the buffer."""


class Shared:
    """A host array that the device uses in place."""

    def __init__(
        self, queue: Any, memory: Memory, native: Native, io: PlannedIO, *, is_input: bool
    ) -> None:
        self._queue = queue
        self._native = native
        self._flags = int(cl.map_flags.READ | (cl.map_flags.WRITE if is_input else 0))
        self._host = _aligned(io.nbytes)
        self.array: Array = self._host[: io.nbytes].view(io.dtype.numpy).reshape(io.shape)
        self.region = memory.new(_name(io, is_input), io.nbytes, self._host)
        self._map = native.map(queue, self.region.buffer, self._host.nbytes, self._flags)
        commands = Commands(queue, native)
        self.after(commands)
        commands.submit()
        with device_errors(f"mapping {io.name}"):
            queue.finish()

    def before(self, commands: Commands) -> None:
        """Hand the array to the device."""
        call = self._native.unmap(self._queue, self.region.buffer, self._host)
        commands.append(call, "unmapping", self._host, self.region.buffer)

    def after(self, commands: Commands) -> None:
        """Take the array back."""
        commands.append(self._map, "mapping", self._host, self.region.buffer)

    def release(self) -> None:
        """End the mapping."""
        commands = Commands(self._queue, self._native)
        self.before(commands)
        commands.submit()
        self._queue.finish()


class Elsewhere:
    """The place of an input or output that is bound to a buffer: nothing is copied. A buffer over
    host memory is handed over before a run and taken back after it."""

    def __init__(self, own: Staging, region: Region, native: Native | None) -> None:
        self.array = own.array
        self.region = region
        self._native = native

    def before(self, commands: Commands) -> None:
        """Hand host memory to the device."""
        host = self.region.host
        if host is not None and self._native is not None:
            call = self._native.unmap(commands.queue, self.region.buffer, host)
            commands.append(call, "unmapping", host, self.region.buffer)

    def after(self, commands: Commands) -> None:
        """Take it back."""
        host = self.region.host
        if host is not None and self._native is not None:
            flags = int(cl.map_flags.READ | cl.map_flags.WRITE)
            call = self._native.map(commands.queue, self.region.buffer, host.nbytes, flags)
            commands.append(call, "mapping", host, self.region.buffer)

    def release(self) -> None:
        """The buffer is not the recording's."""


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


def _name(io: PlannedIO, is_input: bool) -> str:
    return f"{'input' if is_input else 'output'} {io.name}"


def _aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    size = in_lines(nbytes)
    memory = np.zeros(size + _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + size]
