"""Device memory of a recording: arenas, constants, inputs and outputs; or, with guard bands,
a fenced allocation for each of them and for each region of the arena."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyopencl as cl
from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.plan_memory import BasePlanMemory, flat_bytes, named_arenas
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.failure import device_errors

#: Least size of an allocation: OpenCL has no empty buffers, and kernels load whole vectors.
LEAST = 16
#: The part of the device's largest buffer that is not worth sharing memory for.
_MUCH = 16
#: How many times the arena separate buffers may take.
_SHARING = 3


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


class Memory(BasePlanMemory[Region]):
    """The buffers of a plan. Its inputs and outputs are staged (`tflgpu_opencl.staging`) in what
    `new` gives."""

    def __init__(
        self, context: Any, queue: Any, plan: Plan, *, alignment: int, limit: int, guarded: bool
    ) -> None:
        """Allocate the arenas and the constants.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        super().__init__(limit=limit, guarded=guarded, least_band=alignment)
        self._context = context
        self._queue = queue
        # NVIDIA's driver spends 10 us more on every launch whose buffers are parts of a big one
        # (H200, driver 580.159), so regions get buffers of their own where that is not much.
        refs = {r for d in plan.dispatches for r in d.refs if isinstance(r, ArenaRef)}
        apart = sum(r.nbytes for r in refs) <= max(limit // _MUCH, _SHARING * plan.arena_bytes)
        self.constants = [
            self._allocate(f"constant {i}", a.nbytes, flat_bytes(a))
            for i, a in enumerate(plan.constants)
        ]
        sizes = () if guarded or apart else plan.arenas
        self._arenas = [self._allocate(name, nbytes) for name, nbytes in named_arenas(sizes)]

    def new(self, name: str, nbytes: int, host: Array | None = None) -> Region:
        """A buffer, made over ``host`` memory where that is given."""
        if host is None:
            return self._allocate(name, nbytes)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return Region(name, nbytes, self._buffer(name, flags, host.nbytes, host))

    def release(self) -> None:
        """Free everything."""
        # The newest part of an arena first: NVIDIA's driver (580.159, H200) crashes when
        # sub-buffers are released in the order in which they were made.
        regions = [*reversed(self.slices), *self._arenas, *self.constants, *self.inputs]
        regions += self.outputs
        super().release()
        self._arenas = []
        for region in regions:
            for buffer in (region.buffer, region.parent):
                if buffer is not None:
                    buffer.release()

    # Inside

    def _slice(self, name: str, ref: ArenaRef) -> Region:
        if not self._arenas or not ref.nbytes:
            return self._allocate(name, ref.nbytes)
        with device_errors(name):
            part = self._arenas[ref.arena].buffer.get_sub_region(ref.offset, ref.nbytes)
        return Region(name, ref.nbytes, part)

    def _look(self, region: Region, start: int, nbytes: int) -> Bytes:
        found = np.empty(nbytes, np.uint8)
        at = region.band + start
        with device_errors(f"looking around {region.name}"):
            cl.enqueue_copy(self._queue, found, region.parent, src_offset=at, is_blocking=True)
        return found

    def _overwrite(self, region: Region, value: int) -> None:
        if region.nbytes:
            one = np.full(1, value, np.uint8)
            with device_errors(f"filling {region.name}"):
                cl.enqueue_fill_buffer(self._queue, region.buffer, one, 0, region.nbytes)

    def _allocate(self, name: str, nbytes: int, data: Bytes | None = None) -> Region:
        flags = cl.mem_flags.READ_WRITE
        if not self.band:
            if data is None or not nbytes:
                return Region(name, nbytes, self._buffer(name, flags, max(nbytes, LEAST)))
            flags |= cl.mem_flags.COPY_HOST_PTR
            return Region(name, nbytes, self._buffer(name, flags, nbytes, data))
        image = self.fenced(nbytes, data)
        parent = self._buffer(name, flags, image.nbytes)
        with device_errors(name):
            # Written before there is a part of it: NVIDIA's driver (580.159, H200) gives a part of
            # a buffer that nothing has used yet memory of its own, beside which no band lies.
            cl.enqueue_copy(self._queue, parent, image, is_blocking=True)
            part = parent.get_sub_region(self.band, max(nbytes, LEAST))
        return Region(name, nbytes, part, parent, self.band)

    def _buffer(self, name: str, flags: int, nbytes: int, data: Array | None = None) -> Any:
        self.check_size(name, nbytes)
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            # With host memory pyopencl takes the size from it.
            return cl.Buffer(self._context, flags, 0 if data is not None else nbytes, data)
