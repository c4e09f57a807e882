"""The commands of a run, bound once and enqueued again and again on one in-order queue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import Any

import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.kernel.builder import Size3

from tflgpu_opencl.failure import device_errors, explain
from tflgpu_opencl.native import Call, Native


class Commands:
    """Commands in order. ``native`` is None where pyopencl is to enqueue them."""

    def __init__(self, queue: Any, native: Native | None) -> None:
        self._queue = queue
        self._native = native
        self._batches: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = []
        self._alive: list[Any] = [queue]

    def kernel(self, kernel: Any, groups: Size3, workgroup: Size3) -> None:
        """Run a kernel whose arguments are set."""
        size = tuple(g * w for g, w in zip(groups, workgroup, strict=True))
        if not all(size):
            return  # OpenCL calls an empty grid an error
        if self._native:
            call = self._native.kernel(self._queue, kernel, size, workgroup)
        else:
            call = (_enqueue, (self._queue, kernel, size, workgroup))
        self.append(call, kernel)

    def write(self, buffer: Any, array: Array) -> None:
        """Copy a host array to the start of a buffer."""
        if not array.nbytes:
            return
        if self._native:
            call = self._native.write(self._queue, buffer, array)
        else:
            call = (_copy, (self._queue, buffer, array))
        self.append(call, buffer, array)

    def read(self, buffer: Any, array: Array) -> None:
        """Fill a host array from the start of a buffer."""
        if not array.nbytes:
            return
        if self._native:
            call = self._native.read(self._queue, buffer, array)
        else:
            call = (_copy, (self._queue, array, buffer))
        self.append(call, buffer, array)

    def append(self, call: Call, *alive: Any) -> None:
        """Any other command; ``alive`` is what it needs to exist."""
        function, args = call
        if not self._batches or self._batches[-1][0] is not function:
            self._batches.append((function, []))
        self._batches[-1][1].append(args)
        self._alive.extend(alive)

    def submit(self) -> None:
        """Enqueue all commands.

        Raises:
            DeviceError: the driver refused one.
        """
        with device_errors("enqueueing"):
            for function, calls in self._batches:
                status = next(filter(None, starmap(function, calls)), 0)
                if status:
                    raise DeviceError(f"enqueueing: {explain(status)}")


def _copy(queue: Any, to: Any, source: Any) -> None:
    cl.enqueue_copy(queue, to, source, is_blocking=False)


def _enqueue(queue: Any, kernel: Any, size: Size3, local: Size3) -> None:
    cl.enqueue_nd_range_kernel(queue, kernel, size, local)
