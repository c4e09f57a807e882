"""Device memory: a few large blocks, of which regions are parts."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import Use
from tflgpu.contract.pools import LEAST, BasePool, PooledRegion
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, check, create, ffi, lib, make, vk
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.features import CACHED, SHARED, VISIBLE, WRITABLE

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


Region = PooledRegion[Block]


class Pool(BasePool[Block]):
    """Regions in blocks of one kind of memory."""

    def __init__(self, context: Context, kind: str, alignment: int, use: Use = Use.STAGING) -> None:
        super().__init__(alignment, context.details.max_allocation, f"{kind} memory", use)
        self._context = context
        self._kind = kind

    def _block(self, nbytes: int) -> Block:
        return Block(self._context, nbytes, self._kind)


__all__ = ["DEVICE", "HOST", "LEAST", "REACHED", "Block", "Pool", "Region", "usage"]
