"""Device memory of a recording: arenas, constants, inputs and outputs; or, with guard bands,
a fenced allocation for each of them and for each region of the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pyopencl as cl
from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.contract.buffers import Bytes, flat_bytes
from tflgpu.contract.memory_use import Ledger, MemoryUse, Use
from tflgpu.contract.plan_memory import BasePlanMemory, named_arenas
from tflgpu.contract.shared_weights import Made, SharedWeights
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.failure import device_errors

#: Least size of an allocation: OpenCL has no empty buffers, and kernels load whole vectors.
LEAST = 16
#: Whole cache lines: what drivers want of host memory to use it in place, besides a page.
LINE = 64
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
        self, context: Any, queue: Any, plan: Plan, *, alignment: int, limit: int, guarded: bool,
        ledger: Ledger | None = None, shared: SharedWeights[Region] | None = None,
    ) -> None:  # fmt: skip
        """Allocate the arenas and the constants that are not among the ``shared``.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        super().__init__(limit=limit, guarded=guarded, least_band=alignment, ledger=ledger)
        self._context = context
        self._queue = queue
        self._plan = plan
        self._arenas: list[Region] = []
        self.hold(shared, plan.constants, self._new_constants, self._contents)
        sizes = () if guarded or _apart(plan, limit) else plan.arenas
        self._arenas = [self._allocate(name, nbytes) for name, nbytes in named_arenas(sizes)]

    def new(self, name: str, nbytes: int, host: Array | None = None) -> Region:
        """A buffer, made over ``host`` memory where that is given."""
        if host is None:
            return self._allocate(name, nbytes, use=Use.STAGING)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self.ledger.take(Use.STAGING, host.nbytes, name)
        return Region(name, nbytes, self._buffer(name, flags, host.nbytes, host))

    def release(self) -> None:
        """Free everything."""
        # The newest part of an arena first: NVIDIA's driver (580.159, H200) crashes when
        # sub-buffers are released in the order in which they were made.
        regions = [*reversed(self.slices), *self._arenas, *self.inputs, *self.outputs]
        self._arenas = []
        super().release()
        for region in regions:
            _free(region)

    # Inside

    def _new_constants(self, indices: Sequence[int]) -> list[Made[Region]]:
        made: list[Made[Region]] = []
        for i in indices:
            data = flat_bytes(self._plan.constants[i])
            ledger = self.ledger.account.ledger()
            region = self._allocate(f"constant {i}", data.nbytes, data, Use.WEIGHTS, ledger)
            made.append((region, _freeing(region, ledger)))
        return made

    def _contents(self, region: Region) -> Bytes:
        found = np.empty(region.nbytes, np.uint8)
        with device_errors(f"reading {region.name}"):
            cl.enqueue_copy(self._queue, found, region.buffer, is_blocking=True)
        return found

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

    def _allocate(
        self, name: str, nbytes: int, data: Bytes | None = None, use: Use = Use.ARENA,
        ledger: Ledger | None = None,
    ) -> Region:  # fmt: skip
        flags = cl.mem_flags.READ_WRITE
        size = _sized(nbytes) if data is None else _filled(nbytes)
        size = self._end(nbytes) + 2 * self.band if self.band else size
        (self.ledger if ledger is None else ledger).take(use, size, name)
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


def footprint(plan: Plan, limit: int, *, in_place: bool) -> MemoryUse:
    """What a plan takes without guard bands; with ``in_place`` inputs and outputs are the host's."""
    if _apart(plan, limit):
        arena = sum(_sized(ref.nbytes) for ref in _regions(plan))
    else:
        none = sum(LEAST for ref in _regions(plan) if not ref.nbytes)
        arena = sum(map(_sized, plan.arenas)) + none
    edges = (*plan.inputs, *plan.outputs)
    staging = (
        sum(in_lines(io.nbytes) for io in edges)
        if in_place
        else sum(_sized(io.nbytes) + io.nbytes for io in edges)
    )
    return MemoryUse(
        arena, sum(_filled(plan.constants[i].nbytes) for i in plan.own_constants), staging
    )


def in_lines(nbytes: int) -> int:
    """The size of host memory that is used in place: whole cache lines, and some."""
    return max(LINE, -(-nbytes // LINE) * LINE)


def _sized(nbytes: int) -> int:
    return max(nbytes, LEAST)


def _filled(nbytes: int) -> int:
    """Of a buffer that is made with contents."""
    return nbytes or LEAST


def _regions(plan: Plan) -> set[ArenaRef]:
    return {r for d in plan.dispatches for r in d.refs if isinstance(r, ArenaRef)}


def _apart(plan: Plan, limit: int) -> bool:
    """Whether regions of the arena get buffers of their own, as they do where that is not much: NVIDIA's
    driver spends 10 us more on every launch whose buffers are parts of a big one (H200, driver 580.159).
    """
    taken = sum(r.nbytes for r in _regions(plan))
    return taken <= max(limit // _MUCH, _SHARING * plan.arena_bytes)


def _free(region: Region) -> None:
    for buffer in (region.buffer, region.parent):
        if buffer is not None:
            buffer.release()


def _freeing(region: Region, ledger: Ledger) -> Callable[[], None]:
    def free() -> None:
        ledger.close()
        with device_errors(f"freeing {region.name}"):
            _free(region)

    return free
