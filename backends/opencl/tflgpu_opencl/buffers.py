"""OpenCL buffers that recordings can be bound to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.host_memory import usable_in_place
from tflgpu.backend_kit.pools import LEAST
from tflgpu.contract.buffers import Bytes, Span
from tflgpu.lowering.reason import Unsupported

from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.memory import LINE, Region
from tflgpu_opencl.staging import READ_WRITE, Mapped

_FLAGS = cl.mem_flags.READ_WRITE


class OpenCLBuffer(BaseBuffer):
    """A `Buffer`: a ``pyopencl.Buffer``, copied to and from on a queue of the device's."""

    region: Region

    def __init__(self, lock: Any, token: object, nbytes: int, region: Region, queue: Any) -> None:
        super().__init__(lock, token, nbytes, region)
        self._queue = queue
        self.host = region.host
        flags = cl.mem_flags
        self.readable = not region.buffer.flags & flags.WRITE_ONLY
        self.writable = not region.buffer.flags & flags.READ_ONLY

    @property
    def span(self) -> Span:
        """Host memory that it is over, or a buffer that it is a part of."""
        buffer = self.region.buffer
        if self.host is not None or buffer is None:  # closed
            return super().span
        whole = buffer.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT) or buffer
        start = buffer.get_info(cl.mem_info.OFFSET)
        return ("OpenCL", whole.int_ptr), start, start + buffer.size

    def _write(self, data: Bytes) -> None:
        with device_errors("writing a buffer"):
            cl.enqueue_copy(self._queue, self.region.buffer, data, is_blocking=True)

    def _read(self, nbytes: int) -> Bytes:
        found = np.empty(nbytes, np.uint8)
        with device_errors("reading a buffer"):
            cl.enqueue_copy(self._queue, found, self.region.buffer, is_blocking=True)
        return found

    def _export(self) -> object:
        return self.region.buffer

    def _release(self) -> None:
        # Whoever has it otherwise keeps it: OpenCL counts.
        self.region = Region("a closed buffer", 0, None)


def allocated(context: Any, queue: Any, nbytes: int) -> Region:
    """A new buffer, all zeros.

    Raises:
        DeviceError: memory ran out.
    """
    size = max(nbytes, LEAST)
    with device_errors(f"allocating {nbytes} bytes for a buffer"):
        made = cl.Buffer(context, _FLAGS, size)
        cl.enqueue_fill_buffer(queue, made, np.zeros(1, np.uint8), 0, size)
        queue.finish()
    return Region("a buffer", nbytes, made)


def imported(context: Any, queue: Any, source: object, *, in_place: bool) -> Region | Unsupported:
    """A buffer of the context as it is, or one over host memory.

    Args:
        context: The device's.
        queue: Any of its queues.
        source: A ``pyopencl.Buffer``, or what has the buffer protocol.
        in_place: Whether the device uses host memory in place.

    Raises:
        DeviceError: the driver refused.
    """
    if isinstance(source, cl.Buffer):
        if source.context != context:
            return Unsupported(
                "the buffer is of another OpenCL context; make it in the one of an exported buffer"
            )
        return Region("an imported buffer", source.size, source)
    objection = "" if in_place else "shares none with the host"
    host = usable_in_place(source, objection, step=LINE)
    if isinstance(host, Unsupported):
        return host
    with device_errors("importing host memory"):
        made = cl.Buffer(context, _FLAGS | cl.mem_flags.USE_HOST_PTR, 0, host)
    region = Region("imported host memory", host.nbytes, made, host=host)
    Mapped(host, region, host, READ_WRITE).take(queue)
    return region
