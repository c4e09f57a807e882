"""What a recording keeps in memory: an arena, constants, inputs and outputs.

With memory of its own the device has copies of inputs and outputs, and the host's arrays lie in
mapped memory beside. Where host and device share memory, the arrays are what kernels read and
write. With guard bands everything is in memory that the host sees, each region of the arena
fenced in by itself, so that what was written where can be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.protocols import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedIO,
    Ref,
)

from tflgpu_vulkan.api import lib, make
from tflgpu_vulkan.barriers import upload_barrier
from tflgpu_vulkan.blocks import DEVICE, HOST, WRITABLE, Bytes, Pool, Region
from tflgpu_vulkan.context import Commands, Context

#: Where guarded regions' bands begin; a multiple of every element's size.
BAND = 4096
#: As a float this is NaN, as an integer -1: what was never written does not look like data.
_POISON = 0xFF
_UPLOAD_PIECE = 64 << 20
#: Inputs up to this size in all are written straight into device memory, where the host can; some
#: machines have just 256 MiB of it.
_WRITABLE_INPUTS = 64 << 20
#: Outputs up to this size are stored straight into host memory: shorter than a copy.
_SMALL_OUTPUT = 64 << 10


class PlanMemory:
    """The memory of one recording."""

    def __init__(self, context: Context, plan: Plan, *, shared: bool, guarded: bool) -> None:
        """Allocate, and upload the constants.

        Args:
            context: The device.
            plan: What needs memory.
            shared: Let kernels use the host's arrays in place.
            guarded: Fence every buffer in.

        Raises:
            DeviceError: memory ran out.
        """
        self._context = context
        self._plan = plan
        self.in_place = shared or guarded
        self.band = BAND if guarded else 0
        # Bytes that no kernel stores by chance: neither constant nor a repeated value.
        self._pattern = np.random.default_rng(1).integers(0, 256, self.band, np.uint8)
        alignment = context.details.alignment
        self._pool = Pool(context, HOST if self.in_place else DEVICE, alignment)
        self._staging = Pool(context, HOST, alignment)
        self._writable = Pool(context, WRITABLE, alignment)
        self._pools = (self._pool, self._staging, self._writable)
        self.input_arrays: tuple[Array, ...] = ()
        self.output_arrays: tuple[Array, ...] = ()
        self._slices: dict[ArenaRef, Region] = {}
        self._direct: set[int] = set()  # regions, by id, that host and device both reach
        self._arena: Region | None = None
        if plan.arena_bytes and not guarded:
            self._arena = self._region("the arena", plan.arena_bytes)
        self.inputs = [self._input(io) for io in plan.inputs]
        read = _outputs_read(plan)
        self.outputs = [self._output(io, i in read) for i, io in enumerate(plan.outputs)]
        self.constants = [
            self._region(f"constant {i}", a.nbytes) for i, a in enumerate(plan.constants)
        ]
        self.bindings = [[self._resolve(r) for r in d.refs] for d in plan.dispatches]
        self.input_staging = self._stage(self.inputs)
        self.output_staging = self._stage(self.outputs)
        try:
            for pool in self._pools:
                pool.allocate()
            self._fill()
            self.input_arrays = self._arrays(plan.inputs, self.input_staging)
            self.output_arrays = self._arrays(plan.outputs, self.output_staging)
        except DeviceError:
            self.release()
            raise

    def release(self) -> None:
        """Free everything; the device must be done with it."""
        self.input_arrays = self.output_arrays = ()
        for pool in self._pools:
            pool.release()

    # Guard bands

    def poison(self) -> None:
        """Overwrite the arena and the outputs with what no kernel may take for data."""
        for region in (*self._slices.values(), *self.outputs):
            region.bytes[:] = _POISON

    def damage(self, region: Region) -> str | None:
        """What was written outside a region, None where nothing was."""
        start, size = region.bound
        whole = region.block.bytes[start : start + size]
        after = region.band + region.nbytes
        for what, at in (("before", 0), ("after", after)):
            hit = np.flatnonzero(whole[at : at + region.band] != self._pattern)
            if hit.size:
                first = at + int(hit[0]) - region.band
                return (
                    f"{hit.size} bytes {what} {region.name} were overwritten, the first at "
                    f"offset {first} of {region.nbytes}"
                )
        return None

    @property
    def regions(self) -> list[Region]:
        """All of them."""
        arena = [] if self._arena is None else [self._arena]
        return [*arena, *self._slices.values(), *self.inputs, *self.outputs, *self.constants]

    # Inside

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

    def _resolve(self, ref: Ref) -> Region:
        if isinstance(ref, ArenaRef):
            return self._slice(ref)
        if isinstance(ref, ConstRef):
            return self.constants[ref.index]
        return (self.inputs if isinstance(ref, InputRef) else self.outputs)[ref.index]

    def _slice(self, ref: ArenaRef) -> Region:
        found = self._slices.get(ref)
        if found is not None:
            return found
        name = f"arena bytes {ref.offset} to {ref.offset + ref.nbytes}"
        if self._arena is None or not ref.nbytes:
            found = self._region(name, ref.nbytes)
        else:
            at = self._arena.offset + ref.offset
            found = Region(name, ref.nbytes, 0, at, self._arena)
        self._slices[ref] = found
        return found

    def _fill(self) -> None:
        """Put the constants and the bands' pattern where they belong."""
        arrays = [_flat(array) for array in self._plan.constants]
        if not self.in_place:
            self._upload(arrays)
            return
        for region, data in zip(self.constants, arrays, strict=True):
            region.bytes[:] = data
        if self.band:
            for region in self.regions:
                start, _ = region.bound
                after = region.offset + region.nbytes
                for at in (start, after):
                    region.block.bytes[at : at + self.band] = self._pattern

    def _upload(self, arrays: Sequence[Bytes]) -> None:
        total = sum(data.nbytes for data in arrays)
        if not total:
            return
        pool = Pool(self._context, HOST, self._context.details.alignment)
        piece = pool.region("upload", min(total, _UPLOAD_PIECE))
        try:
            pool.allocate()
            filled = 0
            copies: list[tuple[Region, int, int, int]] = []
            for region, data in zip(self.constants, arrays, strict=True):
                done = 0
                while done < data.nbytes:
                    size = min(data.nbytes - done, piece.nbytes - filled)
                    piece.bytes[filled : filled + size] = data[done : done + size]
                    copies.append((region, done, filled, size))
                    done, filled = done + size, filled + size
                    if filled == piece.nbytes:
                        self._copy(piece, copies)
                        filled, copies = 0, []
            if copies:
                self._copy(piece, copies)
        finally:
            pool.release()

    def _copy(self, piece: Region, copies: Sequence[tuple[Region, int, int, int]]) -> None:
        commands = Commands(self._context)
        try:
            buffer = commands.begin()
            for region, at, start, size in copies:
                copy = make(
                    "VkBufferCopy",
                    srcOffset=piece.offset + start, dstOffset=region.offset + at, size=size,
                )  # fmt: skip
                lib.vkCmdCopyBuffer(buffer, piece.block.buffer, region.block.buffer, 1, copy)
            upload_barrier(buffer)
            commands.submit(commands.end(buffer), "uploading constants")
        finally:
            commands.release()


def _flat(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _outputs_read(plan: Plan) -> set[int]:
    """Outputs that some dispatch reads again."""
    return {
        ref.index
        for dispatch in plan.dispatches
        for ref, buffer in zip(dispatch.refs, dispatch.kernel.buffers, strict=False)
        if isinstance(ref, OutputRef) and buffer.access != "write"
    }
