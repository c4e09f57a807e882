"""Regions laid out one after another in a few large blocks, for APIs whose allocations are few or
slow (Vulkan's drivers may allow 4096), or whose buffers are parts of a heap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import attrs

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.plan_memory import too_large
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use
from tflgpu.values import define

#: Least bytes of a region: APIs have no empty buffers, and kernels load whole vectors.
LEAST = 16


class Block(Protocol):
    """One allocation of an API's."""

    @property
    def bytes(self) -> Bytes:
        """The memory as the host sees it, where it does."""

    def release(self) -> None:
        """Free it; the device must be done with it."""


B = TypeVar("B", bound=Block)


@define(eq=False)
class PooledRegion(Generic[B]):
    """Some bytes of a block, named for messages.

    Attributes:
        name: What it is.
        nbytes: How many bytes are its own.
        band: Bytes before and after them that nothing may write.
        offset: Where its own bytes begin, in the block.
        parent: The region that it is a part of, None where it has room of its own.
    """

    name: str
    nbytes: int
    band: int
    offset: int = 0
    parent: PooledRegion[B] | None = attrs.field(default=None, repr=False)
    placed: B | None = attrs.field(default=None, repr=False)

    @property
    def block(self) -> B:
        """The block, once there is one."""
        if self.parent is not None:
            return self.parent.block
        assert self.placed is not None, f"{self.name} has no memory yet"
        return self.placed

    @property
    def bound(self) -> tuple[int, int]:
        """Offset and size of what kernels see of it: its bytes and its bands."""
        size = -(-max(self.nbytes, LEAST) // 4) * 4
        return self.offset - self.band, size + 2 * self.band

    @property
    def bytes(self) -> Bytes:
        """Its bytes, as the host sees them."""
        return self.block.bytes[self.offset : self.offset + self.nbytes]


class MemoryPool(Generic[B]):
    """Lays regions out one after another, then allocates their blocks."""

    def __init__(
        self, make: Callable[[int], B], alignment: int, limit: int, what: str, use: Use
    ) -> None:
        """Without any memory yet.

        Args:
            make: Allocates a block of so many bytes; raises `DeviceError` where memory ran out.
            alignment: Bytes to which regions are aligned.
            limit: Bytes of the largest block.
            what: The kind of memory, for messages.
            use: What it is counted as.
        """
        self._make = make
        self._alignment = alignment
        self._limit = limit
        self._what = what
        self._use = use
        self._sizes: list[int] = []
        self._regions: list[tuple[PooledRegion[B], int]] = []
        self._blocks: list[B] = []

    def region(self, name: str, nbytes: int, band: int = 0) -> PooledRegion[B]:
        """A region; it has memory after `allocate`.

        Raises:
            DeviceError: it is larger than any memory that the device gives.
        """
        size = max(nbytes, LEAST) + 2 * band
        size = -(-size // self._alignment) * self._alignment
        if size > self._limit:
            raise too_large(name, nbytes, self._limit)
        if not self._sizes or self._sizes[-1] + size > self._limit:
            self._sizes.append(0)
        region: PooledRegion[B] = PooledRegion(name, nbytes, band, self._sizes[-1] + band)
        self._sizes[-1] += size
        self._regions.append((region, len(self._sizes) - 1))
        return region

    @property
    def nbytes(self) -> int:
        """Bytes of what was laid out."""
        return sum(self._sizes)

    def allocate(self, ledger: Ledger | None = None) -> None:
        """Give every region its memory, counted in ``ledger``; without one it is not, as what is
        there for the time of a copy is not.

        Raises:
            DeviceError: memory ran out.
        """
        for nbytes in self._sizes:
            if ledger is not None:
                ledger.take(self._use, nbytes, self._what)
            self._blocks.append(self._make(nbytes))
        for region, index in self._regions:
            region.placed = self._blocks[index]

    def release(self) -> None:
        """Free everything; the device must be done with it."""
        for region, _ in self._regions:
            region.placed = None
        self._regions.clear()
        while self._blocks:
            self._blocks.pop().release()
