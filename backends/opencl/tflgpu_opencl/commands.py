"""The commands of a run, bound once and enqueued again and again on one in-order queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from operator import length_hint
from typing import Any

import attrs
import pyopencl as cl
from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Size3

from tflgpu_opencl.failure import failure
from tflgpu_opencl.native import Call, Native


@attrs.frozen
class _Batch:
    """Calls of one function in a row, and what each of them does."""

    function: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    labels: list[str]


class Commands:
    """Commands in order. ``native`` is None where pyopencl is to enqueue them."""

    def __init__(self, queue: Any, native: Native | None) -> None:
        self.queue = queue
        self._native = native
        self._batches: list[_Batch] = []
        self._alive: list[Any] = [queue]
        # pyopencl's event of a copy to or from a host array waits for the copy when it is dropped,
        # in one call, during which no signal is heard. So they live until the next run.
        self._copies: list[Any] = []
        self._copy = partial(_copy, self._copies)

    def kernel(self, kernel: Any, groups: Size3, workgroup: Size3, label: str) -> None:
        """Run a kernel whose arguments are set; ``label`` names it where that fails."""
        size = tuple(g * w for g, w in zip(groups, workgroup, strict=True))
        if not all(size):
            return  # OpenCL calls an empty grid an error
        if self._native:
            call = self._native.kernel(self.queue, kernel, size, workgroup)
        else:
            call = (_enqueue, (self.queue, kernel, size, workgroup))
        self.append(call, label, kernel)

    def write(self, buffer: Any, array: Array) -> None:
        """Copy a host array to the start of a buffer."""
        if not array.nbytes:
            return
        if self._native:
            call = self._native.write(self.queue, buffer, array)
        else:
            call = (self._copy, (self.queue, buffer, array))
        self.append(call, "upload", buffer, array)

    def read(self, buffer: Any, array: Array) -> None:
        """Fill a host array from the start of a buffer."""
        if not array.nbytes:
            return
        if self._native:
            call = self._native.read(self.queue, buffer, array)
        else:
            call = (self._copy, (self.queue, array, buffer))
        self.append(call, "download", buffer, array)

    def append(self, call: Call, label: str, *alive: Any) -> None:
        """Any other command; ``alive`` is what it needs to exist."""
        function, args = call
        if not self._batches or self._batches[-1].function is not function:
            self._batches.append(_Batch(function, [], []))
        self._batches[-1].calls.append(args)
        self._batches[-1].labels.append(label)
        self._alive.extend(alive)

    def submit(self) -> None:
        """Enqueue all commands.

        Raises:
            DeviceError: the driver refused one; the message names it.
        """
        self._copies.clear()
        for batch in self._batches:
            rest = iter(batch.calls)
            try:
                # The loop runs in C, up to the first status that is not 0.
                status = next(filter(None, starmap(batch.function, rest)), 0)
            except cl.Error as error:
                status = error.code
            if status:
                at = len(batch.calls) - length_hint(rest) - 1
                raise failure(batch.labels[at], status)


def _copy(copies: list[Any], queue: Any, to: Any, source: Any) -> None:
    copies.append(cl.enqueue_copy(queue, to, source, is_blocking=False))


def _enqueue(queue: Any, kernel: Any, size: Size3, local: Size3) -> None:
    cl.enqueue_nd_range_kernel(queue, kernel, size, local)
