"""Blocks of device memory, of which regions are parts."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.heaps import HeapKind
from tflgpu.backend_kit.pools import PooledRegion
from tflgpu.contract.buffers import Bytes
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, check, create, ffi, lib, make, vk
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.features import CACHED, SHARED, VISIBLE, WRITABLE

#: What buffers are for.
_USAGE = int(
    vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
    | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
    | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
)


class Allocation:
    """A buffer, and the memory that it alone is bound to.

    Attributes:
        handle: The VkBuffer.
        memory: The VkDeviceMemory, once it is bound.
    """

    def __init__(self, context: Context, nbytes: int, what: str, handles: int = 0) -> None:
        """Without memory yet.

        Args:
            context: The device.
            nbytes: Size of the buffer.
            what: What is tried, for messages.
            handles: By which kinds of handles other APIs have the memory.

        Raises:
            DeviceError: memory ran out.
        """
        self._context, self._what = context, what
        self.memory: Any = NULL
        external = make("VkExternalMemoryBufferCreateInfo", handleTypes=handles)
        chain = external if handles else NULL
        info = make("VkBufferCreateInfo", size=nbytes, usage=_USAGE, pNext=chain)
        self.handle = create(lib.vkCreateBuffer, "VkBuffer", context.handle, info, what)
        self.needs = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(context.handle, self.handle, self.needs)

    def bind(self, nbytes: int, allowed: int, *wishes: int, chain: Any = NULL) -> None:
        """Allocate memory of the first type among the ``allowed`` that has the flags of a wish, and
        bind it.

        Raises:
            DeviceError: there is no such memory, or it ran out.
        """
        context, what = self._context, self._what
        index = context.memory_type(allowed, *wishes)
        if index is None:
            raise DeviceError(f"{what}: the device has no such memory")
        info = make(
            "VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=index, pNext=chain
        )
        self.memory = create(lib.vkAllocateMemory, "VkDeviceMemory", context.handle, info, what)
        check(lib.vkBindBufferMemory(context.handle, self.handle, self.memory, 0), what)

    def map(self, nbytes: int) -> int:
        """The address at which the host sees the memory.

        Raises:
            DeviceError: the driver refused.
        """
        pointer = ffi.new("void**")
        handle = self._context.handle
        check(lib.vkMapMemory(handle, self.memory, 0, nbytes, 0, pointer), self._what)
        return int(ffi.cast("uintptr_t", pointer[0]))

    def release(self) -> None:
        """Free both."""
        lib.vkDestroyBuffer(self._context.handle, self.handle, NULL)
        lib.vkFreeMemory(self._context.handle, self.memory, NULL)

    def end_with(self, owner: Any, alive: object = None) -> weakref.finalize[Any, Any]:
        """Free both with ``owner``, or when what this gives is called; the device, and ``alive``,
        live as long."""
        self._context.retain()
        end = weakref.finalize(owner, self._end, alive)
        end.atexit = False
        return end

    def _end(self, alive: object) -> None:
        if not self._context.inherited:
            self.release()
            self._context.release()
        del alive


class Block:
    """One allocation with one buffer over all of it.

    A mapped block is freed when it is released and no array over it is left.
    """

    def __init__(self, context: Context, nbytes: int, kind: HeapKind) -> None:
        self.nbytes = nbytes
        self._bytes: Bytes | None = None
        self._owner: Any = None
        allocation = Allocation(
            context, nbytes, f"allocating {nbytes} bytes of {kind.value} memory"
        )
        needs, own = allocation.needs, vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        shared = SHARED if context.details.shares_memory else CACHED
        wishes = {
            HeapKind.DEVICE: (own, 0),
            HeapKind.HOST: (shared, VISIBLE),
            HeapKind.REACHED: (WRITABLE,),
        }
        with releasing_on_error(allocation):
            allocation.bind(needs.size, needs.memoryTypeBits, *wishes[kind])
            if kind is not HeapKind.DEVICE:
                # Arrays refer to the owner, so its end is the end of the last of them.
                self._owner = _Mapping(allocation.map(nbytes), nbytes)
                self._bytes = np.asarray(self._owner)
        self.buffer = allocation.handle
        self._free = allocation.end_with(self if self._owner is None else self._owner)

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


class _Mapping:
    """What NumPy makes an array of, and keeps as long as the array."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (pointer, False),
        }


Region = PooledRegion[Block]
