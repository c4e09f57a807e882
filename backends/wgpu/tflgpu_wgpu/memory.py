"""Device memory of a recording: constants, inputs, outputs and the arena's regions; or, with guard
bands, a fenced buffer for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.contract.base_device import releasing_on_error
from tflgpu.contract.buffers import Bytes, flat_bytes
from tflgpu.contract.memory_use import Ledger, MemoryUse, Use
from tflgpu.contract.placement import place
from tflgpu.contract.plan_memory import BasePlanMemory
from tflgpu.contract.shared_weights import Made, SharedWeights

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

    def __init__(
        self, device: Any, plan: Plan, *, limit: int, guarded: bool, ledger: Ledger | None = None,
        shared: SharedWeights[Region] | None = None,
    ) -> None:  # fmt: skip
        """Allocate and upload what is not among the ``shared``.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out.
        """
        super().__init__(limit=limit, guarded=guarded, ledger=ledger)
        self._device = device
        self._plan = plan
        self._owned: list[Any] = []
        self._shared: list[Region] = []
        with releasing_on_error(self):
            self.hold(shared, plan.constants, self._new_constants, self._contents)
            self.inputs = [self._edge(f"input {io.name}", io.nbytes) for io in plan.inputs]
            self.outputs = [self._edge(f"output {io.name}", io.nbytes) for io in plan.outputs]
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

    def buffer(
        self, name: str, nbytes: int, usage: str, data: Bytes | None = None,
        use: Use = Use.STAGING,
    ) -> Any:  # fmt: skip
        """A buffer of a plan, freed with the rest.

        Raises:
            DeviceError: memory ran out.
        """
        self.ledger.take(use, nbytes, name)
        return self._buffer(name, nbytes, usage, data, self._owned)

    # Inside

    def _buffer(
        self, name: str, nbytes: int, usage: str, data: Bytes | None, owned: list[Any]
    ) -> Any:
        with device_errors(f"allocating {nbytes} bytes for {name}"):
            made = self._device.create_buffer(
                size=nbytes, usage=usage, mapped_at_creation=data is not None
            )
            owned.append(made)
            if data is not None:
                made.write_mapped(data)
                made.unmap()
        return made

    def _new_constants(self, indices: Sequence[int]) -> list[Made[Region]]:
        made: list[Made[Region]] = []
        try:
            for i in indices:
                data, owned = flat_bytes(self._plan.constants[i]), list[Any]()
                name, ledger = f"constant {i}", self.ledger.account.ledger()
                self.check_size(name, data.nbytes)
                image = self._image(data.nbytes, data)
                ledger.take(Use.WEIGHTS, image.nbytes, name)
                buffer = self._buffer(name, image.nbytes, USAGE, image, owned)
                region = Region(name, data.nbytes, buffer, self.band, self.band)
                made.append((region, _freeing(owned, ledger)))
        except BaseException:
            for _, free in made:
                free()
            raise
        return made

    def _contents(self, region: Region) -> Bytes:
        with device_errors(f"reading {region.name}"):
            size = self._end(region.nbytes)
            found = self._device.queue.read_buffer(region.buffer, region.offset, size)
        return np.frombuffer(found, np.uint8)[: region.nbytes]

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

    def _edge(self, name: str, nbytes: int) -> Region:
        return self._allocate(name, nbytes, Use.STAGING)

    def _allocate(self, name: str, nbytes: int, use: Use = Use.ARENA) -> Region:
        self.check_size(name, nbytes)
        image = self._image(nbytes) if self.band else None
        size = padded(nbytes) if image is None else image.nbytes
        return Region(
            name, nbytes, self.buffer(name, size, USAGE, image, use), self.band, self.band
        )

    def _image(self, nbytes: int, data: Bytes | None = None) -> Bytes:
        """What is in a buffer from the beginning."""
        fenced = self.fenced(nbytes, data)
        image = np.zeros(padded(nbytes) + 2 * self.band, np.uint8)
        image[: len(fenced)] = fenced
        return image


def footprint(plan: Plan) -> MemoryUse:
    """What a plan takes without guard bands."""
    edges = (*plan.inputs, *plan.outputs)
    # The outputs once more, to be mapped: see the recording.
    mapped = sum(padded(io.nbytes) for io in plan.outputs)
    mapped = mapped if any(io.nbytes for io in plan.outputs) else 0
    return MemoryUse(
        sum(map(padded, place(plan).sizes)),
        sum(padded(plan.constants[i].nbytes) for i in plan.own_constants),
        sum(padded(io.nbytes) for io in edges) + padded(mapped),
    )


def _freeing(owned: list[Any], ledger: Ledger) -> Callable[[], None]:
    def free() -> None:
        ledger.close()
        with device_errors("freeing a constant"):
            while owned:
                owned.pop().destroy()

    return free
