"""Device memory of a recording, and the buffers that it consists of."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.buffer_memory import BufferPlanMemory
from tflgpu.backend_kit.placement import place
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.mapping import Mapping

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


class Memory(BufferPlanMemory[Region]):
    """The buffers of a plan."""

    step = 4  # WebGPU copies words

    def __init__(
        self, device: Any, plan: Plan, *, limit: int, guarded: bool, ledger: Ledger | None = None
    ) -> None:
        """Without any memory yet."""
        super().__init__(plan, place(plan), limit=limit, guarded=guarded, ledger=ledger)
        self._device = device

    def allocate(self, weights: SharedWeights[Region] | None) -> None:
        """Allocate inputs and outputs too.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        super().allocate(weights)
        with releasing_on_error(self):
            self.inputs, self.outputs = (
                [self.new(f"{kind} {io.name}", io.nbytes, Use.STAGING) for io in ios]
                for kind, ios in (("input", self._plan.inputs), ("output", self._plan.outputs))
            )

    def part(self, region: Region, nbytes: int) -> Region:
        """The region's first bytes, those that kernels see."""
        return Region(region.name, nbytes, region.buffer)

    def readable(self, name: str, nbytes: int) -> Mapping:
        """A buffer that the host maps. It lives as long as arrays over it, and is counted as long
        as this memory.

        Raises:
            DeviceError: memory ran out.
        """
        self.check_size(name, nbytes)
        self.ledger.take(Use.STAGING, nbytes, name)
        buffer = self._buffer(name, nbytes, "MAP_READ|COPY_DST")
        with device_errors(f"mapping {name}"):
            return Mapping(self._device, buffer, nbytes)

    # Inside

    def _make(self, name: str, nbytes: int, size: int, image: Bytes | None) -> Region:
        return Region(name, nbytes, self._buffer(name, size, USAGE, image), self.band, self.band)

    def _buffer(self, name: str, nbytes: int, usage: str, data: Bytes | None = None) -> Any:
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            made = self._device.create_buffer(
                size=nbytes, usage=usage, mapped_at_creation=data is not None
            )
            if data is not None:
                made.write_mapped(data)
                made.unmap()
        return made

    def _part(self, name: str, nbytes: int, of: Region, offset: int) -> Region:
        return Region(name, nbytes, of.buffer, offset)

    def _read(self, region: Region, start: int, nbytes: int) -> Bytes:
        at, size = region.offset + start, self._end(nbytes)
        with device_errors(f"reading {region.name}"):
            found = self._device.queue.read_buffer(region.buffer, at, size)
        return np.frombuffer(found, np.uint8)[:nbytes]

    def _write(self, region: Region, data: Bytes) -> None:
        with device_errors(f"writing {region.name}"):
            self._device.queue.write_buffer(region.buffer, region.offset, data)

    @staticmethod
    def _free(region: Region) -> None:
        with device_errors(f"freeing {region.name}"):
            region.buffer.destroy()

    def _padded(self, nbytes: int) -> int:
        return padded(nbytes)

    def _staging(self) -> int:
        outputs = [io.nbytes for io in self._plan.outputs]
        # The outputs once more, to be mapped.
        mapped = outputs if any(outputs) else []
        return sum(map(padded, [*(io.nbytes for io in self._plan.inputs), *outputs, *mapped]))
