"""Device memory: a few large blocks, of which regions are parts."""

from __future__ import annotations

import weakref
from typing import Any

import attrs
import numpy as np
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Ledger, Use
from tflgpu.contract.plan_memory import too_large
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, check, create, ffi, lib, make, vk
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.features import CACHED, SHARED, VISIBLE, WRITABLE

#: Vulkan has no empty buffers, and kernels load whole vectors.
LEAST = 16

#: The device's own memory; the host's; the device's own that the host can write to.
DEVICE, HOST, REACHED = "device", "host", "host-writable device"


def usage() -> int:
    """What buffers are for."""
    return int(
        vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    )


class Block:
    """One allocation with one buffer over all of it.

    A mapped block is freed when it is released and no array over it is left.
    """

    def __init__(self, context: Context, nbytes: int, kind: str) -> None:
        self._context = context
        self.nbytes = nbytes
        info = make("VkBufferCreateInfo", size=nbytes, usage=usage())
        what = f"allocating {nbytes} bytes of {kind} memory"
        self.buffer = create(lib.vkCreateBuffer, "VkBuffer", context.handle, info, what)
        self._memory: Any = NULL
        self._bytes: Bytes | None = None
        try:
            self._memory = self._allocate(kind, what)
            check(lib.vkBindBufferMemory(context.handle, self.buffer, self._memory, 0), what)
            pointer = None if kind == DEVICE else self._map(what)
        except DeviceError:
            lib.vkDestroyBuffer(context.handle, self.buffer, NULL)
            lib.vkFreeMemory(context.handle, self._memory, NULL)
            raise
        context.retain()
        if pointer is None:
            self._owner: Any = None
            self._free = weakref.finalize(self, _free, context, self.buffer, self._memory)
        else:
            # Arrays refer to the owner, so its end is the end of the last of them.
            self._owner = _Mapping(pointer, nbytes)
            self._bytes = np.asarray(self._owner)
            self._free = weakref.finalize(self._owner, _free, context, self.buffer, self._memory)
        self._free.atexit = False

    @property
    def bytes(self) -> Bytes:
        """The memory as the host sees it (of a mapped block only)."""
        assert self._bytes is not None, "this memory is the device's own"
        return self._bytes

    def release(self) -> None:
        """Free it, now or with the last array over it; the device must be done with it."""
        if self._owner is None:
            self._free()
        self._owner = self._bytes = None

    def _allocate(self, kind: str, what: str) -> Any:
        context = self._context
        needs = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(context.handle, self.buffer, needs)
        wishes = {
            DEVICE: (vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0),
            HOST: (SHARED if context.details.shares_memory else CACHED, VISIBLE),
            REACHED: (WRITABLE,),
        }[kind]
        index = context.memory_type(needs.memoryTypeBits, *wishes)
        if index is None:
            raise DeviceError(f"{what}: the device has no such memory")
        info = make("VkMemoryAllocateInfo", allocationSize=needs.size, memoryTypeIndex=index)
        return create(lib.vkAllocateMemory, "VkDeviceMemory", context.handle, info, what)

    def _map(self, what: str) -> int:
        pointer = ffi.new("void**")
        handle, nbytes = self._context.handle, self.nbytes
        check(lib.vkMapMemory(handle, self._memory, 0, nbytes, 0, pointer), what)
        return int(ffi.cast("uintptr_t", pointer[0]))


class _Mapping:
    """What NumPy makes an array of, and keeps as long as the array."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (pointer, False),
        }  # fmt: skip


def _free(context: Context, buffer: Any, memory: Any) -> None:
    if context.inherited:
        return
    lib.vkDestroyBuffer(context.handle, buffer, NULL)
    lib.vkFreeMemory(context.handle, memory, NULL)
    context.release()


@attrs.define(eq=False)
class Region:
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
    parent: Region | None = attrs.field(default=None, repr=False)
    placed: Block | None = attrs.field(default=None, repr=False)

    @property
    def block(self) -> Block:
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


class Pool:
    """Lays regions out one after another, then allocates their blocks."""

    def __init__(self, context: Context, kind: str, alignment: int, use: Use = Use.STAGING) -> None:
        self._context = context
        self._kind = kind
        self._use = use
        self._alignment = alignment
        self._limit = context.details.max_allocation
        self._sizes: list[int] = []
        self._regions: list[tuple[Region, int]] = []
        self._blocks: list[Block] = []

    def region(self, name: str, nbytes: int, band: int = 0) -> Region:
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
        region = Region(name, nbytes, band, self._sizes[-1] + band)
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
                ledger.take(self._use, nbytes, f"{self._kind} memory")
            self._blocks.append(Block(self._context, nbytes, self._kind))
        for region, index in self._regions:
            region.placed = self._blocks[index]

    def release(self) -> None:
        """Free everything; the device must be done with it."""
        for region, _ in self._regions:
            region.placed = None
        self._regions.clear()
        while self._blocks:
            self._blocks.pop().release()
