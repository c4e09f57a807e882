"""Device memory of a recording, and the buffers that it consists of."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyopencl as cl
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.buffer_memory import BufferPlanMemory
from tflgpu.backend_kit.placement import place
from tflgpu.backend_kit.pools import LEAST
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.failure import device_errors

#: Whole cache lines: what drivers want of host memory to use it in place, besides a page.
LINE = 64
_FLAGS = cl.mem_flags.READ_WRITE


@attrs.frozen(eq=False)
class Region:
    """A buffer, named for messages; ``parent`` reaches ``band`` bytes further on both sides.
    ``host`` is the host's memory that it was made over, mapped but in runs, if that was imported.
    """

    name: str
    nbytes: int
    buffer: Any = attrs.field(repr=False)
    parent: Any = attrs.field(default=None, repr=False)
    band: int = 0
    host: Bytes | None = attrs.field(default=None, repr=False)


class Memory(BufferPlanMemory[Region]):
    """The buffers of a plan. Its inputs and outputs are staged (`tflgpu_opencl.staging`)."""

    def __init__(
        self,
        context: Any,
        plan: Plan,
        *,
        alignment: int,
        limit: int,
        guarded: bool,
        in_place: bool,
        ledger: Ledger | None = None,
    ) -> None:
        """Without any memory yet; with ``in_place`` inputs and outputs are the host's."""
        # Not one large buffer: NVIDIA's driver spends 10 us more on every launch whose buffers are
        # parts of one (H200, driver 580.159). A shorter region in front of a buffer is all of it.
        super().__init__(
            plan, place(plan), limit=limit, guarded=guarded, least_band=alignment, ledger=ledger
        )
        self._context = context
        self.queue: Any = None  # the recording's, once it is allocated
        self.in_place = in_place and not guarded

    def allocate(self, weights: SharedWeights[Region] | None) -> None:
        """Make the queue too.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        with device_errors("making a queue"):
            self.queue = cl.CommandQueue(self._context)
        super().allocate(weights)

    def over(self, name: str, host: Array) -> Region:
        """A buffer made over host memory."""
        self.check_size(name, host.nbytes)
        self.ledger.take(Use.STAGING, host.nbytes, name)
        buffer = self._buffer(name, _FLAGS | cl.mem_flags.USE_HOST_PTR, host.nbytes, host)
        return self.own(Region(name, host.nbytes, buffer))

    # Inside

    def _make(self, name: str, nbytes: int, size: int, image: Bytes | None) -> Region:
        if not self.band:
            flags = _FLAGS if image is None else _FLAGS | cl.mem_flags.COPY_HOST_PTR
            return Region(name, nbytes, self._buffer(name, flags, size, image))
        parent = self._buffer(name, _FLAGS, size)
        with device_errors(name):
            # Written before there is a part of it: NVIDIA's driver (580.159, H200) gives a part of
            # a buffer that nothing has used yet memory of its own, beside which no band lies.
            cl.enqueue_copy(self.queue, parent, image, is_blocking=True)
            part = parent.get_sub_region(self.band, max(nbytes, LEAST))
        return Region(name, nbytes, part, parent, self.band)

    def _part(self, name: str, nbytes: int, of: Region, offset: int) -> Region:
        if not offset:
            return Region(name, nbytes, of.buffer)
        with device_errors(name):
            part = of.buffer.get_sub_region(offset, nbytes)
        return self.own(Region(name, nbytes, part))

    def _read(self, region: Region, start: int, nbytes: int) -> Bytes:
        found = np.empty(nbytes, np.uint8)
        whole = region.buffer if region.parent is None else region.parent
        at = region.band + start
        with device_errors(f"reading {region.name}"):
            cl.enqueue_copy(self.queue, found, whole, src_offset=at, is_blocking=True)
        return found

    def _write(self, region: Region, data: Bytes) -> None:
        with device_errors(f"writing {region.name}"):
            cl.enqueue_copy(self.queue, region.buffer, data, is_blocking=True)

    @staticmethod
    def _free(region: Region) -> None:
        with device_errors(f"freeing {region.name}"):
            for buffer in (region.buffer, region.parent):
                if buffer is not None:
                    buffer.release()

    def _staging(self) -> int:
        edges = (*self._plan.inputs, *self._plan.outputs)
        if self.in_place:
            return sum(in_lines(io.nbytes) for io in edges)
        return sum(self._padded(io.nbytes) + io.nbytes for io in edges)

    def _buffer(self, name: str, flags: int, nbytes: int, data: Array | None = None) -> Any:
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            # With host memory pyopencl takes the size from it.
            return cl.Buffer(self._context, flags, 0 if data is not None else nbytes, data)


def in_lines(nbytes: int) -> int:
    """The size of host memory that is used in place: whole cache lines, and some."""
    return max(LINE, -(-nbytes // LINE) * LINE)
