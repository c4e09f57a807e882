"""Device memory of a recording: constants, inputs, outputs and the arena's regions; or, with guard
bands, a fenced buffer for each of them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.placement import place
from tflgpu.contract.plan_memory import BasePlanMemory, flat_bytes

from tflgpu_wgpu.failure import device_errors

#: Sizes are multiples of the largest element, so that a kernel's array holds whole elements.
STEP = 16
USAGE = "STORAGE|COPY_SRC|COPY_DST"


def padded(nbytes: int) -> int:
    """The size of a buffer that holds ``nbytes``; there are no empty ones."""
    return max(STEP, -(-nbytes // STEP) * STEP)


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


class Memory(BasePlanMemory[Region]):
    """The buffers of a plan."""

    step = 4  # WebGPU copies words

    def __init__(self, device: Any, plan: Plan, *, limit: int, guarded: bool) -> None:
        """Allocate and upload.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        super().__init__(limit=limit, guarded=guarded)
        self._device = device
        self._owned: list[Any] = []
        self.constants = [
            self._allocate(f"constant {i}", array.nbytes, flat_bytes(array))
            for i, array in enumerate(plan.constants)
        ]
        self.inputs = [self._allocate(f"input {io.name}", io.nbytes) for io in plan.inputs]
        self.outputs = [self._allocate(f"output {io.name}", io.nbytes) for io in plan.outputs]
        self._placement = place(plan)
        sizes = () if guarded else self._placement.sizes
        self._shared = [self._allocate(f"arena buffer {i}", n) for i, n in enumerate(sizes)]

    def part(self, region: Region, nbytes: int) -> Region:
        """As much as kernels are to see."""
        return Region(region.name, nbytes, region.buffer)

    def release(self) -> None:
        """Free everything now, whoever still refers to it."""
        super().release()
        self._shared = []
        owned, self._owned = self._owned, []
        for buffer in owned:
            buffer.destroy()

    def buffer(self, name: str, nbytes: int, usage: str, data: Bytes | None = None) -> Any:
        """A buffer of a plan, freed with the rest.

        Raises:
            DeviceError: memory ran out.
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

    def _slice(self, name: str, ref: ArenaRef) -> Region:
        if self.guarded:
            return self._allocate(name, ref.nbytes)
        index, offset = self._placement.of[ref]
        return Region(name, ref.nbytes, self._shared[index].buffer, offset)

    def _look(self, region: Region, start: int, nbytes: int) -> Bytes:
        with device_errors(f"looking around {region.name}"):
            found = self._device.queue.read_buffer(region.buffer, region.offset + start, nbytes)
        return np.frombuffer(found, np.uint8)

    def _overwrite(self, region: Region, value: int) -> None:
        image = np.full(self._end(region.nbytes), value, np.uint8)
        if not image.size:
            return
        with device_errors(f"filling {region.name}"):
            self._device.queue.write_buffer(region.buffer, region.offset, image)

    def _allocate(self, name: str, nbytes: int, data: Bytes | None = None) -> Region:
        self.check_size(name, nbytes)
        if not self.band and data is None:
            return Region(name, nbytes, self.buffer(name, padded(nbytes), USAGE))
        fenced = self.fenced(nbytes, data)
        image = np.zeros(padded(nbytes) + 2 * self.band, np.uint8)
        image[: len(fenced)] = fenced
        made = self.buffer(name, image.nbytes, USAGE, image)
        return Region(name, nbytes, made, self.band, self.band)
