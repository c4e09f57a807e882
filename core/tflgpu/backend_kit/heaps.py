"""A device's kinds of memory, and copies between the host and device-only memory, for APIs in which
the application chooses where memory lies (Vulkan, Direct3D 12)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Generic

import numpy as np

from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.base_device import Released, releasing_on_error
from tflgpu.backend_kit.pools import B, MemoryPool, PooledRegion
from tflgpu.backend_kit.split_copy import split_copy
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use
from tflgpu.values import frozen

#: Bytes of host memory that a copy takes at most, whatever it copies.
PIECE = 64 << 20
#: A piece of so many bytes is kept for the next copy: where state is read after each run,
#: allocating one takes longer than the run.
_KEPT = 256 << 10


class HeapKind(Enum):
    """Whose memory it is."""

    #: The device's own.
    DEVICE = "device"
    #: The host's, which the device reaches.
    HOST = "host"
    #: The device's own, which the host can write to.
    REACHED = "host-writable device"


@frozen(eq=False)
class PieceCopy(Generic[B]):
    """``nbytes`` at ``start`` in the host's piece, and at ``at`` in a region."""

    region: PooledRegion[B]
    at: int
    start: int
    nbytes: int


class Heaps(ABC, Generic[B]):
    """The memory of one device. A subclass has `_block` and `_copy`.

    Attributes:
        alignment: Bytes to which what is bound must be aligned.
        limit: Bytes of the largest allocation.
        has_reached: Whether there is memory of the kind `HeapKind.REACHED`.
        has_cached: Whether the host reads what is of the kind `HeapKind.HOST` at full speed.
    """

    def __init__(
        self, *, alignment: int, limit: int, has_reached: bool = False, has_cached: bool = True
    ) -> None:
        self.alignment = alignment
        self.limit = limit
        self.has_reached = has_reached
        self.has_cached = has_cached
        self._spare: list[tuple[PooledRegion[B], MemoryPool[B]]] = []

    # For subclasses to write

    @abstractmethod
    def _block(self, kind: HeapKind, nbytes: int) -> B:
        """One allocation.

        Raises:
            DeviceError: memory ran out, or there is none of that kind.
        """

    @abstractmethod
    def _copy(
        self, piece: PooledRegion[B], copies: Sequence[PieceCopy[B]], *, to_host: bool
    ) -> None:
        """Copy from ``piece``, which is the host's, or to it; return, or raise, when the device is
        done with all of them: they are freed next. What was submitted before is done before, and
        what follows is after it.

        Raises:
            DeviceError: the device failed.
        """

    # What memory, recordings and buffers use

    def pool(self, kind: HeapKind, use: Use = Use.STAGING) -> MemoryPool[B]:
        """Regions to be laid out in memory of a kind."""
        what = f"{kind.value} memory"
        return MemoryPool(partial(self._block, kind), self.alignment, self.limit, what, use)

    def zeros(
        self, name: str, nbytes: int, kind: HeapKind
    ) -> tuple[PooledRegion[B], MemoryPool[B]]:
        """A region in a pool of its own, all zeros.

        Raises:
            DeviceError: memory ran out.
        """
        pool = self.pool(kind)
        region = pool.region(name, nbytes)
        with releasing_on_error(pool):
            pool.allocate()
            self.fill([region], [np.zeros(nbytes, np.uint8)], kind)
        return region, pool

    def fill(
        self, regions: Sequence[PooledRegion[B]], arrays: Iterable[Bytes], kind: HeapKind
    ) -> None:
        """Fill regions of one kind of memory from their start.

        Raises:
            DeviceError: memory ran out, or the device failed.
        """
        if kind is HeapKind.DEVICE:
            self.upload(regions, arrays)
            return
        for region, data in zip(regions, arrays, strict=True):
            _copied(data, region.bytes[: data.nbytes])

    def upload(self, regions: Sequence[PooledRegion[B]], arrays: Iterable[Bytes]) -> None:
        """Fill regions that the host does not see from their start.

        Raises:
            DeviceError: memory ran out, or the device failed.
        """
        total = sum(region.nbytes for region in regions)
        if not total:
            return
        with self._piece(total) as piece:
            filled = 0
            copies: list[PieceCopy[B]] = []
            for region, data in zip(regions, arrays, strict=True):
                done = 0
                while done < data.nbytes:
                    size = min(data.nbytes - done, piece.nbytes - filled)
                    _copied(data[done : done + size], piece.bytes[filled : filled + size])
                    copies.append(PieceCopy(region, done, filled, size))
                    done, filled = done + size, filled + size
                    if filled == piece.nbytes:
                        self._copy(piece, copies, to_host=False)
                        filled, copies = 0, []
            if copies:
                self._copy(piece, copies, to_host=False)

    def download(self, region: PooledRegion[B], nbytes: int) -> Bytes:
        """The first bytes of a region that the host does not see.

        Raises:
            DeviceError: memory ran out, or the device failed.
        """
        found = np.empty(nbytes, np.uint8)
        if not nbytes:
            return found
        with self._piece(nbytes) as piece:
            for start in range(0, nbytes, piece.nbytes):
                size = min(nbytes - start, piece.nbytes)
                self._copy(piece, [PieceCopy(region, start, 0, size)], to_host=True)
                found[start : start + size] = piece.bytes[:size]
        return found

    def release(self) -> None:
        """Free what was kept for the next copy. Copies may follow, and keep something again."""
        while self._spare:
            self._spare.pop()[1].release()

    # Inside

    @contextmanager
    def _piece(self, total: int) -> Iterator[PooledRegion[B]]:
        piece, pool = self._spared(total) or self._new_piece(total)
        is_done = False
        try:
            yield piece
            is_done = True
        finally:
            # One of a copy that failed is not trusted again.
            if is_done and piece.nbytes == _KEPT and not self._spare:
                self._spare.append((piece, pool))
            else:
                pool.release()

    def _spared(self, total: int) -> tuple[PooledRegion[B], MemoryPool[B]] | None:
        # Threads may ask at once: whoever takes it has it alone.
        with suppress(IndexError):
            return self._spare.pop() if total <= _KEPT else None
        return None

    def _new_piece(self, total: int) -> tuple[PooledRegion[B], MemoryPool[B]]:
        pool = self.pool(HeapKind.HOST)
        piece = pool.region("the host's piece", max(min(total, PIECE), min(_KEPT, PIECE)))
        with releasing_on_error(pool):
            pool.allocate()
        return piece, pool


def _copied(source: Bytes, target: Bytes) -> None:
    if not split_copy(target, source):
        target[:] = source


class PooledBuffer(BaseBuffer, Generic[B]):
    """A `Buffer`. A subclass has `_export`, and ``span`` where others may have the same memory."""

    region: PooledRegion[B]

    def __init__(
        self,
        lock: Any,
        token: object,
        region: PooledRegion[B],
        heaps: Heaps[B],
        owner: Released | None,
        *,
        is_mapped: bool,
    ) -> None:
        """Of the device that has ``lock`` and ``token``.

        Args:
            lock: As `BaseBuffer`'s.
            token: As `BaseBuffer`'s.
            region: All of it.
            heaps: The device's memory.
            owner: What ends with the buffer; None where the memory was imported.
            is_mapped: Whether the host sees the region.
        """
        super().__init__(lock, token, region.nbytes, region)
        self._heaps = heaps
        self._owner = owner
        self._is_mapped = is_mapped

    def _write(self, data: Bytes) -> None:
        if self._is_mapped:
            self.region.bytes[: len(data)] = data
        else:
            self._heaps.upload([self.region], [data])

    def _read(self, nbytes: int) -> Bytes:
        if self._is_mapped:
            return self.region.bytes[:nbytes]
        return self._heaps.download(self.region, nbytes)

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.release()
