"""The commands of a run, bound once and enqueued again and again on one in-order queue."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyopencl as cl
from tflgpu.backend_kit.calls import Calls
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.language.types import Size3

from tflgpu_opencl.failure import failure
from tflgpu_opencl.native import Native


class Commands(Calls):
    """Commands in order. ``native`` is None where pyopencl is to enqueue them."""

    raises = (cl.Error,)

    def __init__(self, queue: Any, native: Native | None) -> None:
        super().__init__()
        self.queue = queue
        self._native = native
        self._alive.append(queue)
        # pyopencl's event of a copy to or from a host array waits for the copy when it is dropped,
        # in one call, during which no signal is heard. So they live until the next run.
        self._copy = partial(_copy, self.until_next)

    def kernel(
        self, kernel: Any, groups: Size3, workgroup: Size3, label: str, event: Any = None
    ) -> None:
        """Run a kernel whose arguments are set; ``label`` names it where that fails. ``event`` is
        for functions of the library's own, and as `Native.kernel` takes it."""
        size = tuple(g * w for g, w in zip(groups, workgroup, strict=True))
        if not all(size):
            return  # OpenCL calls an empty grid an error
        if self._native:
            call = self._native.kernel(self.queue, kernel, size, workgroup, event)
        else:
            call = (_enqueue, (self.queue, kernel, size, workgroup))
        self.append(call, label, kernel)

    def write(self, buffer: Any, array: Array) -> None:
        """Copy a host array to the start of a buffer."""
        raw = self._native and self._native.write
        self._move(raw, "upload", buffer, array, (buffer, array))

    def read(self, buffer: Any, array: Array) -> None:
        """Fill a host array from the start of a buffer."""
        raw = self._native and self._native.read
        self._move(raw, "download", buffer, array, (array, buffer))

    def _move(self, raw: Any, label: str, buffer: Any, array: Array, ends: tuple[Any, Any]) -> None:
        if array.nbytes:
            call = raw(self.queue, buffer, array) if raw else (self._copy, (self.queue, *ends))
            self.append(call, label, buffer, array)

    def _failure(self, label: str, status: int) -> DeviceError:
        return failure(label, status)

    def _status(self, error: Any) -> int:
        return int(error.code)


def _copy(copies: list[Any], queue: Any, to: Any, source: Any) -> None:
    copies.append(cl.enqueue_copy(queue, to, source, is_blocking=False))


def _enqueue(queue: Any, kernel: Any, size: Size3, local: Size3) -> None:
    cl.enqueue_nd_range_kernel(queue, kernel, size, local)
