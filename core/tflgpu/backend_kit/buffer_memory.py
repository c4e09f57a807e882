"""A recording's memory where every buffer is an allocation of its own (OpenCL, WebGPU): constants,
inputs, outputs, and the arena's buffers; with guard bands, a fenced buffer for each region."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_buffer import flat_bytes
from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.placement import Placement, regions_of
from tflgpu.backend_kit.plan_memory import LEAST_BAND, BasePlanMemory, R, named_arenas
from tflgpu.backend_kit.pools import LEAST
from tflgpu.backend_kit.shared_weights import Made, SharedWeights
from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import MemoryUse, Use
from tflgpu.ir.dtypes import Array


class BufferPlanMemory(BasePlanMemory[R], Generic[R]):
    """The memory of one recording. A subclass has `_make`, `_part`, `_read`, `_write` and `_free`,
    and makes ``inputs`` and ``outputs`` by `new`."""

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        *,
        limit: int,
        guarded: bool,
        least_band: int = LEAST_BAND,
        ledger: Ledger | None = None,
    ) -> None:
        """Without any memory yet; there is some after `allocate`.

        Args:
            plan: What needs memory.
            placement: Where regions of the arena lie without guard bands. Those that it leaves out
                get buffers of their own.
            limit: As `BasePlanMemory`'s, and so are the rest.
            guarded: Whether regions lie between guard bands.
            least_band: Bytes that a band must have.
            ledger: Counts what is allocated.
        """
        super().__init__(limit=limit, guarded=guarded, least_band=least_band, ledger=ledger)
        self._plan = plan
        self._placement = Placement((), {}) if guarded else placement
        self._arenas: list[R] = []
        self._owned: list[R] = []

    # For subclasses to write

    @abstractmethod
    def _make(self, name: str, nbytes: int, size: int, image: Bytes | None) -> R:
        """A region with a buffer of its own.

        Args:
            name: What it is.
            nbytes: Bytes of its own; they begin after ``band`` bytes of the buffer.
            size: Bytes of the buffer, bands included.
            image: What the buffer has from the beginning, None where that does not matter.

        Raises:
            DeviceError: memory ran out; nothing is left then.
        """

    @abstractmethod
    def _part(self, name: str, nbytes: int, of: R, offset: int) -> R:
        """Some bytes of a buffer that has no bands, as a region; `own` has it be freed, where the
        API wants that.

        Raises:
            DeviceError: the driver refused.
        """

    @abstractmethod
    def _read(self, region: R, start: int, nbytes: int) -> Bytes:
        """Bytes of a region; ``start`` counts from the first of its own, and may be in a band.

        Raises:
            DeviceError: the device failed.
        """

    @abstractmethod
    def _write(self, region: R, data: Bytes) -> None:
        """Set a region's bytes from the first on; there are some, and as many as a whole number of
        ``step``.

        Raises:
            DeviceError: the device failed.
        """

    @staticmethod
    @abstractmethod
    def _free(region: R) -> None:
        """Free a region now. Holds nothing else of the recording, which constants may outlive.

        Raises:
            DeviceError: the device failed.
        """

    def _padded(self, nbytes: int) -> int:
        """The size of a buffer for so many bytes: there are no empty ones, and kernels load whole
        vectors."""
        return max(nbytes, LEAST)

    @abstractmethod
    def _staging(self) -> int:
        """Bytes that inputs and outputs take, and the host's memory for them that is counted."""

    # What devices and recordings use

    def allocate(self, weights: SharedWeights[R] | None) -> None:
        """Allocate the arena's buffers, and the constants that are not among ``weights``.

        Raises:
            DeviceError: a buffer is larger than the device allows, or memory ran out; nothing is
                left then.
        """
        with releasing_on_error(self):
            self.hold(weights, self._plan.constants, self._new_constants, self._contents)
            self._arenas = [
                self.new(name, nbytes, Use.ARENA)
                for name, nbytes in named_arenas(self._placement.sizes)
            ]

    def new(self, name: str, nbytes: int, use: Use) -> R:
        """A region with a buffer of its own, freed with the rest.

        Raises:
            DeviceError: it is larger than the device allows, or memory ran out.
        """
        return self.own(self._filled(name, nbytes, None, use, self.ledger))

    def own(self, region: R) -> R:
        """Have a region be freed with the rest."""
        self._owned.append(region)
        return region

    def write(self, region: R, data: Bytes) -> None:
        """Set all of a region's bytes.

        Raises:
            DeviceError: the device failed.
        """
        whole = data
        if data.nbytes % self.step:
            whole = np.zeros(self._end(data.nbytes), np.uint8)
            whole[: data.nbytes] = data
        if whole.nbytes:
            self._write(region, whole)

    def read(self, region: R) -> Bytes:
        """All of a region's bytes.

        Raises:
            DeviceError: the device failed.
        """
        return self._read(region, 0, region.nbytes) if region.nbytes else np.empty(0, np.uint8)

    def upload(self, arrays: Sequence[Array]) -> None:
        """Copy arrays into the inputs' buffers."""
        for region, array in zip(self.inputs, arrays, strict=True):
            self.write(region, flat_bytes(array))

    def download(self, arrays: Sequence[Array]) -> None:
        """Copy the outputs' buffers into arrays."""
        for region, array in zip(self.outputs, arrays, strict=True):
            array.reshape(-1).view(np.uint8)[...] = self.read(region)

    def release(self) -> None:
        """Free everything now, even where it is still referred to."""
        super().release()
        self._arenas = []
        # The newest first: NVIDIA's OpenCL driver (580.159, H200) crashes when parts of a buffer
        # are released in the order in which they were made.
        while self._owned:
            self._free(self._owned.pop())

    @property
    def footprint(self) -> MemoryUse:
        """What is allocated for the plan, its own constants included. For one without guard
        bands."""
        alone = (r.nbytes for r in regions_of(self._plan) if r not in self._placement.of)
        sizes = self._plan.constants.sizes
        weights = (sizes[i] for i in self._plan.own_constants)
        return MemoryUse(
            sum(map(self._padded, (*self._placement.sizes, *alone))),
            sum(map(self._padded, weights)),
            self._staging(),
        )

    # Inside

    def _new_constants(self, indices: Sequence[int]) -> list[Made[R]]:
        """Each is counted and freed by itself: others may use it longer than this recording."""
        made: list[Made[R]] = []
        try:
            for i in indices:
                data, ledger = flat_bytes(self._plan.constants[i]), self.ledger.account.ledger()
                region = self._filled(f"constant {i}", data.nbytes, data, Use.WEIGHTS, ledger)
                made.append((region, _freeing(self._free, region, ledger)))
        except BaseException:
            for _, free in made:
                free()
            raise
        return made

    def _contents(self, region: R) -> Bytes:
        return self.read(region)

    def _slice(self, name: str, ref: ArenaRef) -> R:
        if ref not in self._placement.of:
            return self.new(name, ref.nbytes, Use.ARENA)
        index, offset = self._placement.of[ref]
        return self._part(name, ref.nbytes, self._arenas[index], offset)

    def _look(self, region: R, start: int, nbytes: int) -> Bytes:
        return self._read(region, start, nbytes)

    def _overwrite(self, region: R, value: int) -> None:
        self.write(region, np.full(region.nbytes, value, np.uint8))

    def _filled(self, name: str, nbytes: int, data: Bytes | None, use: Use, ledger: Ledger) -> R:
        size = self._padded(nbytes)
        self.check_size(name, size)
        size += 2 * self.band
        ledger.take(use, size, name)
        return self._make(name, nbytes, size, self._image(nbytes, size, data))

    def _image(self, nbytes: int, size: int, data: Bytes | None) -> Bytes | None:
        """What is in a buffer from the beginning."""
        if not self.band and (data is None or data.nbytes == size):
            return data
        fenced = self.fenced(nbytes, data)
        image = np.zeros(size, np.uint8)
        image[: fenced.nbytes] = fenced
        return image


def _freeing(free: Callable[[R], None], region: R, ledger: Ledger) -> Callable[[], None]:
    def end() -> None:
        ledger.close()
        free(region)

    return end
