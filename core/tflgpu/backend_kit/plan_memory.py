"""The base of a plan's memory: which region a dispatch is bound to, and guard bands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.check_plan import SMALLER
from tflgpu.backend_kit.shared_weights import Holding, Made, SharedWeights
from tflgpu.compiler.constants import Constants
from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, PlannedDispatch, Ref
from tflgpu.contract.buffers import Bytes
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

#: Least bytes of a pattern before and after a region; a multiple of every element's size.
LEAST_BAND = 4096
#: As a float this is NaN, as an integer -1: what was never written does not look like data.
POISON = 0xFF


class Region(Protocol):
    """Some bytes of a device's memory."""

    @property
    def name(self) -> str:
        """What it is, for messages."""

    @property
    def nbytes(self) -> int:
        """How many bytes are its own."""

    @property
    def band(self) -> int:
        """Bytes before and after them that nothing may write; 0 without guard bands."""


R = TypeVar("R", bound=Region)


class BasePlanMemory(ABC, Generic[R]):
    """The memory of one recording, as regions of a subclass's kind.

    A subclass fills ``constants``, ``inputs`` and ``outputs``, has `_slice` and, for guard bands,
    `_look` and `_overwrite`; and extends `release`. Bindings that are equal share a region.

    Attributes:
        guarded: Whether regions have bands.
        band: Bytes of the pattern on each side of a region; 0 without guard bands.
        constants: One per constant of the plan.
        inputs, outputs: One per input and output of the plan.
    """

    #: Memory is copied in multiples of so many bytes; the band after a region begins at one.
    step = 1

    def __init__(
        self,
        *,
        limit: int,
        guarded: bool,
        least_band: int = LEAST_BAND,
        ledger: Ledger | None = None,
    ) -> None:
        """Without any memory yet.

        Args:
            limit: Bytes of the device's largest buffer.
            guarded: Whether regions lie between guard bands.
            least_band: Bytes that a band must have, as the device aligns memory.
            ledger: Counts what is allocated; None where no limit or report needs it.
        """
        self._limit = limit
        self.ledger = Ledger() if ledger is None else ledger
        self._held: Holding[R] | None = None
        self.guarded = guarded
        self.band = max(LEAST_BAND, least_band) if guarded else 0
        # Bytes that no kernel stores by chance: neither constant nor a repeated value.
        self._pattern = np.empty(0, np.uint8)
        if self.band:
            # Not without need: it is the first that imports `numpy.random`.
            self._pattern = np.random.default_rng(1).integers(0, 256, self.band, np.uint8)
        self.constants: list[R] = []
        self.inputs: list[R] = []
        self.outputs: list[R] = []
        self._slices: dict[ArenaRef, R] = {}
        #: What takes the place of inputs and outputs, where a recording is bound to buffers.
        self.bound: dict[Ref, R] = {}

    # For subclasses to write

    @abstractmethod
    def _slice(self, name: str, ref: ArenaRef) -> R:
        """A region for some bytes of the arena; asked for once for each of them."""

    @abstractmethod
    def _look(self, region: R, start: int, nbytes: int) -> Bytes:
        """Bytes of a region's band; ``start`` counts from the first byte of its own."""

    @abstractmethod
    def _overwrite(self, region: R, value: int) -> None:
        """Set every byte of a region."""

    def upload(self, arrays: Sequence[Array]) -> None:
        """Fill the inputs, between guard bands. Nothing where kernels use the host's arrays.

        Raises:
            DeviceError: the device failed.
        """

    def download(self, arrays: Sequence[Array]) -> None:
        """Fill arrays from the outputs, likewise.

        Raises:
            DeviceError: the device failed.
        """

    def part(self, region: R, nbytes: int) -> R:
        """The first bytes of a buffer's region, for an input or output of that size. All of it
        where nothing depends on the size."""
        return region

    def release(self) -> None:
        """Free everything; the device must be done with it. Twice is harmless."""
        self.constants, self.inputs, self.outputs, self._slices = [], [], [], {}
        self.bound = {}
        held, self._held = self._held, None
        if held is not None:
            held.close()
        self.ledger.close()

    def hold(
        self,
        shared: SharedWeights[R] | None,
        constants: Constants,
        make: Callable[[Sequence[int]], Sequence[Made[R]]],
        read: Callable[[R], Bytes],
    ) -> None:
        """Have a plan's constants: those that the device has for others, and new ones. Between
        guard bands all are this recording's own.

        Raises:
            What ``make`` and ``read`` raise.
        """
        if not constants:
            return
        mine = SharedWeights[R]() if shared is None or self.guarded else shared
        self._held = mine.hold(constants, make, read)
        self.constants = list(self._held.regions)

    # What recordings use

    @property
    def slices(self) -> list[R]:
        """The regions of the arena that dispatches are bound to."""
        return list(self._slices.values())

    @property
    def regions(self) -> list[R]:
        """All regions."""
        return [*self.constants, *self._slices.values(), *self.inputs, *self.outputs]

    def bind(self, dispatches: Sequence[PlannedDispatch]) -> list[tuple[R, ...]]:
        """The regions of every dispatch, one per buffer of its kernel.

        Raises:
            DeviceError: memory ran out.
        """
        return [tuple(self.resolve(ref) for ref in d.refs) for d in dispatches]

    def resolve(self, ref: Ref) -> R:
        """The region that a dispatch's binding stands for.

        Raises:
            DeviceError: memory ran out.
        """
        if self.bound and ref in self.bound:
            return self.bound[ref]
        if isinstance(ref, ArenaRef):
            found = self._slices.get(ref)
            if found is None:
                which = f"arena {ref.arena}" if ref.arena else "arena"
                name = f"{which} bytes {ref.offset} to {ref.offset + ref.nbytes}"
                found = self._slices[ref] = self._slice(name, ref)
            return found
        if isinstance(ref, ConstRef):
            return self.constants[ref.index]
        return self.inputs[ref.index] if isinstance(ref, InputRef) else self.outputs[ref.index]

    def check_size(self, name: str, nbytes: int) -> None:
        """Refuse what no buffer of the device can hold.

        Raises:
            DeviceError: ``name`` is larger than that; says what would help.
        """
        if nbytes > self._limit:
            raise too_large(name, nbytes, self._limit)

    # Guard bands

    def fenced(self, nbytes: int, data: Bytes | None = None) -> Bytes:
        """What is in memory before the first run: a band, ``data`` (or `POISON`), a band."""
        inside = np.full(self._end(nbytes), POISON, np.uint8)
        if data is not None:
            inside[:nbytes] = data
        return np.concatenate([self._pattern, inside, self._pattern])

    def poison(self) -> None:
        """Overwrite the arena and the outputs with what no kernel may take for data."""
        for region in (*self._slices.values(), *self.outputs):
            self._overwrite(region, POISON)

    def damage(self, region: R) -> str | None:
        """What was written outside a region, None where nothing was."""
        if not region.band:
            return None
        for what, start in (("before", -region.band), ("after", self._end(region.nbytes))):
            found = self._look(region, start, region.band)
            hit = np.flatnonzero(found != self._pattern)
            if hit.size:
                return (
                    f"{hit.size} bytes {what} {region.name} were overwritten, the first at "
                    f"offset {start + int(hit[0])} of {region.nbytes}"
                )
        return None

    def _end(self, nbytes: int) -> int:
        return -(-nbytes // self.step) * self.step


def named_arenas(arenas: Sequence[int]) -> list[tuple[str, int]]:
    """Names for messages, and the sizes of a plan's arenas in bytes."""
    if len(arenas) == 1:
        return [("the arena", arenas[0])]
    return [(f"arena {i}", nbytes) for i, nbytes in enumerate(arenas)]


def too_large(name: str, nbytes: int, limit: int) -> DeviceError:
    """What to raise where ``name`` is over the ``limit`` of the device's buffers, in bytes."""
    return DeviceError(
        f"{name} takes {nbytes} bytes, and the device's buffers have at most {limit}{SMALLER}"
    )
