"""What a recording keeps in memory: an arena, constants, inputs and outputs.

With memory of its own the device has copies of inputs and outputs, and the host's arrays lie in
mapped memory beside. Where host and device share memory, the arrays are what kernels read and
write. With guard bands everything is in memory that the host sees, each region of the arena
fenced in by itself, so that what was written where can be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan, PlannedIO
from tflgpu.contract.base_device import releasing_on_error
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.plan_memory import BasePlanMemory, flat_bytes, named_arenas
from tflgpu.ir.dtypes import Array

from tflgpu_vulkan.blocks import DEVICE, HOST, REACHED, Pool, Region
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.transfer import upload

#: Inputs up to this size in all are written straight into device memory, where the host can; some
#: machines have just 256 MiB of it.
_WRITABLE_INPUTS = 64 << 20
#: Outputs up to this size are stored straight into host memory: shorter than a copy.
_SMALL_OUTPUT = 64 << 10


class PlanMemory(BasePlanMemory[Region]):
    """The memory of one recording."""

    def __init__(self, context: Context, plan: Plan, *, shared: bool, guarded: bool) -> None:
        """Lay out everything and allocate it, and upload the constants.

        Args:
            context: The device.
            plan: What needs memory.
            shared: Let kernels use the host's arrays in place.
            guarded: Fence every buffer in.

        Raises:
            DeviceError: memory ran out.
        """
        details = context.details
        super().__init__(limit=details.max_allocation, guarded=guarded)
        self._context = context
        self._plan = plan
        self.in_place = shared or guarded
        self._pool = Pool(context, HOST if self.in_place else DEVICE, details.alignment)
        self._staging = Pool(context, HOST, details.alignment)
        self._writable = Pool(context, REACHED, details.alignment)
        self._pools = (self._pool, self._staging, self._writable)
        self.input_arrays: tuple[Array, ...] = ()
        self.output_arrays: tuple[Array, ...] = ()
        self._direct: set[int] = set()  # regions, by id, that host and device both reach
        sizes = () if guarded else plan.arenas
        self._arenas = [self._region(name, nbytes) for name, nbytes in named_arenas(sizes)]
        self.inputs = [self._input(io) for io in plan.inputs]
        read = _outputs_read(plan)
        self.outputs = [self._output(io, i in read) for i, io in enumerate(plan.outputs)]
        self.constants = [
            self._region(f"constant {i}", a.nbytes) for i, a in enumerate(plan.constants)
        ]
        self.bind(plan.dispatches)  # so that every region is in its pool
        self.input_staging = self._stage(self.inputs)
        self.output_staging = self._stage(self.outputs)
        with releasing_on_error(self):
            for pool in self._pools:
                pool.allocate()
            self._fill()
            self.input_arrays = self._arrays(plan.inputs, self.input_staging)
            self.output_arrays = self._arrays(plan.outputs, self.output_staging)

    def uploads(self) -> list[tuple[Region, Region]]:
        """What is copied before the kernels: from where to where."""
        pairs = zip(self.input_staging, self.inputs, strict=True)
        return [pair for i, pair in enumerate(pairs) if InputRef(i) not in self.bound]

    def downloads(self, staging: Sequence[Region]) -> list[tuple[Region, Region]]:
        """What is copied after them, to ``staging``."""
        pairs = zip(self.outputs, staging, strict=True)
        return [pair for i, pair in enumerate(pairs) if OutputRef(i) not in self.bound]

    def part(self, region: Region, nbytes: int) -> Region:
        """As much as kernels are to see, and no bands."""
        return Region(region.name, nbytes, 0, region.offset, placed=region.block)

    def release(self) -> None:
        """Free everything; the device must be done with it."""
        super().release()
        self.input_arrays = self.output_arrays = ()
        for pool in self._pools:
            pool.release()

    # Inside

    def _look(self, region: Region, start: int, nbytes: int) -> Bytes:
        at = region.offset + start
        return region.block.bytes[at : at + nbytes]

    def _overwrite(self, region: Region, value: int) -> None:
        region.bytes[:] = value

    def _region(self, name: str, nbytes: int) -> Region:
        return self._pool.region(name, nbytes, self.band)

    def _input(self, io: PlannedIO) -> Region:
        name = f"input {io.name}"
        if self.in_place or not self._context.details.has_writable_memory:
            return self._region(name, io.nbytes)
        if sum(each.nbytes for each in self._plan.inputs) > _WRITABLE_INPUTS:
            return self._region(name, io.nbytes)
        region = self._writable.region(name, io.nbytes)
        self._direct.add(id(region))
        return region

    def _output(self, io: PlannedIO, read_back: bool) -> Region:
        name = f"output {io.name}"
        if self.in_place or read_back or io.nbytes > _SMALL_OUTPUT:
            return self._region(name, io.nbytes)
        region = self._staging.region(name, io.nbytes)
        self._direct.add(id(region))
        return region

    def _stage(self, regions: Sequence[Region]) -> list[Region]:
        """Where the host writes or reads: the region itself where it can."""
        return [
            r if self.in_place or id(r) in self._direct
            else self._staging.region(f"{r.name} on the host", r.nbytes)
            for r in regions
        ]  # fmt: skip

    def _arrays(self, ios: Sequence[PlannedIO], regions: Sequence[Region]) -> tuple[Array, ...]:
        found = []
        for io, region in zip(ios, regions, strict=True):
            region.bytes[:] = 0
            found.append(region.bytes.view(io.dtype.numpy).reshape(io.shape))
        return tuple(found)

    def _slice(self, name: str, ref: ArenaRef) -> Region:
        if not self._arenas or not ref.nbytes:
            return self._region(name, ref.nbytes)
        arena = self._arenas[ref.arena]
        return Region(name, ref.nbytes, 0, arena.offset + ref.offset, arena)

    def _fill(self) -> None:
        """Put the constants and the bands' pattern where they belong."""
        arrays = [flat_bytes(array) for array in self._plan.constants]
        if not self.in_place:
            upload(self._context, self.constants, arrays)
            return
        for region, data in zip(self.constants, arrays, strict=True):
            region.bytes[:] = data
        if self.band:
            for region in self.regions:
                start, _ = region.bound
                after = region.offset + region.nbytes
                for at in (start, after):
                    region.block.bytes[at : at + self.band] = self._pattern


def _outputs_read(plan: Plan) -> set[int]:
    """Outputs that some dispatch reads again."""
    return {
        ref.index
        for dispatch in plan.dispatches
        for ref, buffer in zip(dispatch.refs, dispatch.kernel.buffers, strict=False)
        if isinstance(ref, OutputRef) and buffer.access != "write"
    }
