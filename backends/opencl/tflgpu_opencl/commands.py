"""The commands of a run, bound once and enqueued again and again on one in-order queue."""

from __future__ import annotations

from typing import Any

from tflgpu.backend_kit.calls import Calls
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.language.types import Size3

from tflgpu_opencl.failure import failure
from tflgpu_opencl.native import native


class Commands(Calls):
    """Commands in order."""

    def __init__(self, queue: Any) -> None:
        super().__init__()
        self.queue = queue
        self._alive.append(queue)

    def kernel(
        self, kernel: Any, groups: Size3, workgroup: Size3, label: str, event: Any = None
    ) -> None:
        """Run a kernel whose arguments are set; ``label`` names it where that fails. ``event`` is
        as `Native.kernel` takes it."""
        size = tuple(g * w for g, w in zip(groups, workgroup, strict=True))
        if all(size):  # OpenCL calls an empty grid an error
            call = native().kernel(self.queue, kernel, size, workgroup, event)
            self.append(call, label, kernel)

    def write(self, buffer: Any, array: Array) -> None:
        """Copy a host array to the start of a buffer."""
        if array.nbytes:
            self.append(native().write(self.queue, buffer, array), "upload", buffer, array)

    def read(self, buffer: Any, array: Array) -> None:
        """Fill a host array from the start of a buffer."""
        if array.nbytes:
            self.append(native().read(self.queue, buffer, array), "download", buffer, array)

    def _failure(self, label: str, status: int) -> DeviceError:
        return failure(label, status)
