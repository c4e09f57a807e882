"""Device memory of a recording: one arena, constants, inputs and outputs; or, with guard bands,
a fenced allocation for each of them and for each region of the arena."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.check_plan import SMALLER
from tflgpu.runtime.protocols import ArenaRef, ConstRef, InputRef, Plan, PlannedDispatch, Ref

from tflgpu_opencl.failure import device_errors

Bytes = npt.NDArray[np.uint8]
#: Least size of an allocation: OpenCL has no empty buffers, and kernels load whole vectors.
_LEAST = 16
_LEAST_BAND = 4096
#: The part of the device's largest buffer that is not worth sharing memory for.
_MUCH = 16
#: How many times the arena separate buffers may take.
_SHARING = 3
#: As a float this is NaN, as an integer -1: what was never written does not look like data.
_POISON = 0xFF


@attrs.frozen(eq=False)
class Region:
    """A buffer, named for messages; ``parent`` reaches ``band`` bytes further on both sides."""

    name: str
    nbytes: int
    buffer: Any = attrs.field(repr=False)
    parent: Any = attrs.field(default=None, repr=False)
    band: int = 0


class Memory:
    """The buffers of a plan. Bindings that are equal share a buffer."""

    def __init__(
        self, context: Any, queue: Any, plan: Plan, *, alignment: int, limit: int, guarded: bool
    ) -> None:
        """Allocate.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        self._context = context
        self._queue = queue
        self._limit = limit
        self._band = max(_LEAST_BAND, alignment) if guarded else 0
        # Bytes that no kernel stores by chance: neither constant nor a repeated value.
        self._pattern = np.random.default_rng(1).integers(0, 256, self._band, np.uint8)
        self._slices: dict[ArenaRef, Region] = {}
        self.guarded = guarded
        # NVIDIA's driver spends 10 us more on every launch whose buffers are parts of a big one
        # (H200, driver 580.159), so regions get buffers of their own where that is not much.
        refs = {r for d in plan.dispatches for r in d.refs if isinstance(r, ArenaRef)}
        apart = sum(r.nbytes for r in refs) <= max(limit // _MUCH, _SHARING * plan.arena_bytes)
        self.constants = [self._constant(i, a) for i, a in enumerate(plan.constants)]
        whole = not guarded and not apart
        self._arena = self._allocate("the arena", plan.arena_bytes) if whole else None

    def new(self, name: str, nbytes: int, host: Array | None = None) -> Region:
        """A buffer, made over ``host`` memory where that is given."""
        if host is None:
            return self._allocate(name, nbytes)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return Region(name, nbytes, self._buffer(name, flags, host.nbytes, host))

    def bind(
        self, dispatch: PlannedDispatch, inputs: list[Region], outputs: list[Region]
    ) -> list[Region]:
        """The buffers of a dispatch, one per buffer of its kernel.

        Raises:
            DeviceError: memory ran out.
        """
        return [self._resolve(ref, inputs, outputs) for ref in dispatch.refs]

    def poison(self) -> None:
        """Overwrite the arena with what no kernel may take for data (with guard bands only)."""
        for region in self._slices.values():
            self.poison_region(region)

    def poison_region(self, region: Region) -> None:
        """Overwrite one buffer so."""
        if region.nbytes:
            value = np.full(1, _POISON, np.uint8)
            cl.enqueue_fill_buffer(self._queue, region.buffer, value, 0, region.nbytes)

    def damage(self, region: Region) -> str | None:
        """What was written outside a region, None where nothing was."""
        if region.parent is None:
            return None
        after = region.band + region.nbytes
        for what, start in (("before", 0), ("after", after)):
            found = np.empty(region.band, np.uint8)
            cl.enqueue_copy(self._queue, found, region.parent, src_offset=start, is_blocking=True)
            hit = np.flatnonzero(found != self._pattern)
            if hit.size:
                at = start + int(hit[0]) - region.band
                return (
                    f"{hit.size} bytes {what} {region.name} were overwritten, the first at "
                    f"offset {at} of {region.nbytes}"
                )
        return None

    @property
    def regions(self) -> list[Region]:
        """All buffers but those of inputs and outputs."""
        arena = [] if self._arena is None else [self._arena]
        return [*self.constants, *self._slices.values(), *arena]

    def release(self) -> None:
        """Free everything."""
        # The newest part of the arena first: NVIDIA's driver (580.159, H200) crashes when
        # sub-buffers are released in the order in which they were made.
        arena = [] if self._arena is None else [self._arena]
        regions = [*reversed(self._slices.values()), *arena, *self.constants]
        self.constants, self._slices, self._arena = [], {}, None
        for region in regions:
            free(region)

    # Inside

    def _resolve(self, ref: Ref, inputs: list[Region], outputs: list[Region]) -> Region:
        if isinstance(ref, ArenaRef):
            return self._slice(ref)
        if isinstance(ref, ConstRef):
            return self.constants[ref.index]
        return (inputs if isinstance(ref, InputRef) else outputs)[ref.index]

    def _slice(self, ref: ArenaRef) -> Region:
        found = self._slices.get(ref)
        if found is not None:
            return found
        name = f"arena bytes {ref.offset} to {ref.offset + ref.nbytes}"
        if self._arena is None or not ref.nbytes:
            region = self._allocate(name, ref.nbytes)
        else:
            with device_errors(name):
                part = self._arena.buffer.get_sub_region(ref.offset, ref.nbytes)
            region = Region(name, ref.nbytes, part)
        self._slices[ref] = region
        return region

    def _constant(self, index: int, array: Array) -> Region:
        data: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._allocate(f"constant {index}", data.nbytes, data)

    def _allocate(self, name: str, nbytes: int, data: Bytes | None = None) -> Region:
        flags = cl.mem_flags.READ_WRITE
        if not self._band:
            if data is None or not nbytes:
                return Region(name, nbytes, self._buffer(name, flags, max(nbytes, _LEAST)))
            flags |= cl.mem_flags.COPY_HOST_PTR
            return Region(name, nbytes, self._buffer(name, flags, nbytes, data))
        inside = np.full(nbytes, _POISON, np.uint8) if data is None else data
        image = np.concatenate([self._pattern, inside, self._pattern])
        parent = self._buffer(name, flags, image.nbytes)
        with device_errors(name):
            # Written before there is a part of it: NVIDIA's driver (580.159, H200) gives a part of
            # a buffer that nothing has used yet memory of its own, beside which no band lies.
            cl.enqueue_copy(self._queue, parent, image, is_blocking=True)
            part = parent.get_sub_region(self._band, max(nbytes, _LEAST))
        return Region(name, nbytes, part, parent, self._band)

    def _buffer(self, name: str, flags: int, nbytes: int, data: Array | None = None) -> Any:
        if nbytes > self._limit:
            raise DeviceError(
                f"{name} takes {nbytes} bytes, and the device's buffers have at most {self._limit}"
                + SMALLER
            )
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            # With host memory pyopencl takes the size from it.
            return cl.Buffer(self._context, flags, 0 if data is not None else nbytes, data)


def free(region: Region) -> None:
    """Release a buffer now, whoever still refers to it."""
    for buffer in (region.buffer, region.parent):
        if buffer is not None:
            buffer.release()
