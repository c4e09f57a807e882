"""Device memory of a recording: constants, inputs, outputs and the arena's regions; or, with guard
bands, a fenced buffer for each of them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.check_plan import SMALLER
from tflgpu.runtime.protocols import ArenaRef, ConstRef, InputRef, Plan, PlannedDispatch, Ref

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.placement import place

Bytes = npt.NDArray[np.uint8]
#: Sizes are multiples of the largest element, so that a kernel's array holds whole elements.
_STEP = 16
_LEAST_BAND = 4096
#: As a float this is NaN, as an integer -1: what was never written does not look like data.
_POISON = 0xFF
_USAGE = "STORAGE|COPY_SRC|COPY_DST"


def padded(nbytes: int) -> int:
    """The size of a buffer that holds ``nbytes``; there are no empty ones."""
    return max(_STEP, -(-nbytes // _STEP) * _STEP)


@attrs.frozen(eq=False)
class Region:
    """``nbytes`` at ``offset`` in a buffer, named for messages. ``band`` bytes before and after
    belong to it too; kernels see the bands, which lets them be caught there."""

    name: str
    nbytes: int
    buffer: Any = attrs.field(repr=False)
    offset: int = 0
    band: int = 0

    @property
    def binding(self) -> dict[str, Any]:
        """What a bind group takes."""
        size = padded(self.nbytes) + 2 * self.band
        return {"buffer": self.buffer, "offset": self.offset - self.band, "size": size}


class Memory:
    """The buffers of a plan. Bindings that are equal share a region."""

    def __init__(self, device: Any, plan: Plan, *, limit: int, guarded: bool) -> None:
        """Allocate and upload.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        self._device = device
        self._limit = limit
        self.band = _LEAST_BAND if guarded else 0
        # Bytes that no kernel stores by chance: neither constant nor a repeated value.
        self._pattern = np.random.default_rng(1).integers(0, 256, self.band, np.uint8)
        self._slices: dict[ArenaRef, Region] = {}
        self._owned: list[Any] = []
        self.constants = [self._constant(i, a) for i, a in enumerate(plan.constants)]
        self.inputs = [self._allocate(f"input {io.name}", io.nbytes) for io in plan.inputs]
        self.outputs = [self._allocate(f"output {io.name}", io.nbytes) for io in plan.outputs]
        if plan.arena_bytes > limit:
            raise self._too_large("the arena", plan.arena_bytes)
        self._placement = place(plan)
        self._shared = (
            []
            if guarded
            else [self._allocate(f"arena buffer {i}", n) for i, n in
                  enumerate(self._placement.sizes)]
        )  # fmt: skip

    @property
    def guarded(self) -> bool:
        """Whether buffers have bands."""
        return self.band > 0

    def bind(self, dispatch: PlannedDispatch) -> list[Region]:
        """The regions of a dispatch, one per buffer of its kernel.

        Raises:
            DeviceError: memory ran out.
        """
        return [self._resolve(ref) for ref in dispatch.refs]

    def poison(self) -> None:
        """Overwrite what kernels write with what nobody takes for data."""
        for region in (*self._slices.values(), *self.outputs):
            image = np.full(padded(region.nbytes), _POISON, np.uint8)
            self._device.queue.write_buffer(region.buffer, region.offset, image)

    def damage(self, region: Region) -> str | None:
        """What was written outside a region, None where nothing was."""
        if not region.band:
            return None
        found = np.frombuffer(self._device.queue.read_buffer(region.buffer), np.uint8)
        # Uploads are in words of 4 bytes, so the band begins at the next whole word.
        end = -(-region.nbytes // 4) * 4
        after = region.offset + end
        unused = np.full(padded(region.nbytes) - end, _POISON, np.uint8)
        tail = np.concatenate([unused, self._pattern])
        for what, start, want in (("before", 0, self._pattern), ("after", after, tail)):
            hit = np.flatnonzero(found[start : start + len(want)] != want)
            if hit.size:
                at = start + int(hit[0]) - region.band
                return (
                    f"{hit.size} bytes {what} {region.name} were overwritten, the first at "
                    f"offset {at} of {region.nbytes}"
                )
        return None

    @property
    def regions(self) -> list[Region]:
        """All regions."""
        return [*self.constants, *self._slices.values(), *self.inputs, *self.outputs]

    def release(self) -> None:
        """Free everything now, whoever still refers to it."""
        self.constants, self.inputs, self.outputs, self._shared = [], [], [], []
        self._slices = {}
        owned, self._owned = self._owned, []
        for buffer in owned:
            buffer.destroy()

    def buffer(self, name: str, nbytes: int, usage: str, data: Bytes | None = None) -> Any:
        """A buffer of a plan, freed with the rest.

        Raises:
            DeviceError: it is larger than the device allows, or memory ran out.
        """
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            made = self._device.create_buffer(
                size=nbytes, usage=usage, mapped_at_creation=data is not None
            )
            self._owned.append(made)
            if data is not None:
                made.write_mapped(data)
                made.unmap()
        return made

    # Inside

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
        if self.guarded:
            region = self._allocate(name, ref.nbytes)
        else:
            index, offset = self._placement.of[ref]
            region = Region(name, ref.nbytes, self._shared[index].buffer, offset)
        self._slices[ref] = region
        return region

    def _constant(self, index: int, array: Array) -> Region:
        data: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._allocate(f"constant {index}", data.nbytes, data)

    def _allocate(self, name: str, nbytes: int, data: Bytes | None = None) -> Region:
        if nbytes > self._limit:
            raise self._too_large(name, nbytes)
        size = padded(nbytes)
        if not self.band and data is None:
            return Region(name, nbytes, self.buffer(name, size, _USAGE))
        inside = np.full(size, _POISON if self.band else 0, np.uint8)
        if data is not None:
            inside[:nbytes] = data
        image = np.concatenate([self._pattern, inside, self._pattern])
        made = self.buffer(name, image.nbytes, _USAGE, image)
        return Region(name, nbytes, made, self.band, self.band)

    def _too_large(self, name: str, nbytes: int) -> DeviceError:
        return DeviceError(
            f"{name} takes {nbytes} bytes, and the device's buffers have at most {self._limit}"
            + SMALLER
        )
