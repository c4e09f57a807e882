"""Memory that the device shares with others: the host's, imported, and what is exported by a file
descriptor."""

from __future__ import annotations

import weakref
from typing import Any

from tflgpu.contract.buffers import Bytes
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, check, create, ffi, lib, make, vk
from tflgpu_vulkan.blocks import LEAST, Region, usage
from tflgpu_vulkan.context import Context

_HOST = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
_FD = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT


class HostBlock:
    """A buffer over whole pages of the host's memory, which stays the host's."""

    def __init__(self, context: Context, memory: Bytes) -> None:
        """Import it.

        Raises:
            DeviceError: the driver refused.
        """
        self.nbytes = memory.nbytes
        #: The memory as the host sees it.
        self.bytes = memory
        what = f"importing {memory.nbytes} bytes of host memory"
        self.buffer = _buffer(context, memory.nbytes, _HOST, what)
        handle: Any = NULL
        try:
            pointer = ffi.cast("void*", memory.ctypes.data)
            needs = _needs(context, self.buffer)
            # Where the driver wants more than there is, none of its types is right.
            fits = needs.memoryTypeBits if needs.size <= memory.nbytes else 0
            allowed = _types_of(context, pointer, what) & fits
            index = _type(context, what, allowed, vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)
            chain = make("VkImportMemoryHostPointerInfoEXT", handleType=_HOST, pHostPointer=pointer)
            handle = _allocated(context, memory.nbytes, index, chain, what)
            check(lib.vkBindBufferMemory(context.handle, self.buffer, handle, 0), what)
        except DeviceError:
            lib.vkDestroyBuffer(context.handle, self.buffer, NULL)
            lib.vkFreeMemory(context.handle, handle, NULL)
            raise
        context.retain()
        # The array lives as long as the device may reach it.
        self._free = weakref.finalize(self, _free, context, self.buffer, handle, memory)
        self._free.atexit = False

    def release(self) -> None:
        """Let go of it; the device must be done with it."""
        self._free()


class SharedBlock:
    """Memory of the device that another API may import by a file descriptor.

    Attributes:
        nbytes: Of the buffer.
        allocated: Of the memory, which is what is imported.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        """Allocate it, with a buffer over all of it.

        Raises:
            DeviceError: memory ran out, or the driver exports none.
        """
        self.nbytes = nbytes
        what = f"allocating {nbytes} bytes of memory to be shared"
        self._context = context
        self.buffer = _buffer(context, nbytes, _FD, what)
        self._memory: Any = NULL
        try:
            needs = _needs(context, self.buffer)
            self.allocated = int(needs.size)
            local = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
            index = _type(context, what, needs.memoryTypeBits, local, 0)
            # One allocation for one buffer: some drivers share no others.
            alone = make("VkMemoryDedicatedAllocateInfo", buffer=self.buffer)
            chain = make("VkExportMemoryAllocateInfo", handleTypes=_FD, pNext=alone)
            self._memory = _allocated(context, self.allocated, index, chain, what)
            check(lib.vkBindBufferMemory(context.handle, self.buffer, self._memory, 0), what)
        except DeviceError:
            lib.vkDestroyBuffer(context.handle, self.buffer, NULL)
            lib.vkFreeMemory(context.handle, self._memory, NULL)
            raise
        context.retain()
        self._free = weakref.finalize(self, _free, context, self.buffer, self._memory, None)
        self._free.atexit = False

    def descriptor(self) -> int:
        """A new file descriptor of the memory, which is the caller's to close or hand on.

        Raises:
            DeviceError: the driver gives none.
        """
        context, found = self._context, ffi.new("int*")
        get = _function(context, "vkGetMemoryFdKHR")
        info = make("VkMemoryGetFdInfoKHR", memory=self._memory, handleType=_FD)
        check(get(context.handle, info, found), "exporting memory")
        return int(found[0])

    def release(self) -> None:
        """Free it; the device must be done with it. Who imported it keeps the memory."""
        self._free()


def over_host(context: Context, memory: Bytes) -> Region:
    """A region over whole pages of host memory.

    Raises:
        DeviceError: the driver refused.
    """
    block: Any = HostBlock(context, memory)
    return Region("imported host memory", memory.nbytes, 0, 0, placed=block)


def shared_region(context: Context, nbytes: int) -> tuple[Region, SharedBlock]:
    """A region of memory that can be exported.

    Raises:
        DeviceError: memory ran out, or the driver exports none.
    """
    block = SharedBlock(context, max(LEAST, -(-nbytes // LEAST) * LEAST))
    placed: Any = block
    return Region("a shared buffer", nbytes, 0, 0, placed=placed), block


def _buffer(context: Context, nbytes: int, handles: int, what: str) -> Any:
    external = make("VkExternalMemoryBufferCreateInfo", handleTypes=handles)
    info = make("VkBufferCreateInfo", size=nbytes, usage=usage(), pNext=external)
    return create(lib.vkCreateBuffer, "VkBuffer", context.handle, info, what)


def _needs(context: Context, buffer: Any) -> Any:
    needs = ffi.new("VkMemoryRequirements*")
    lib.vkGetBufferMemoryRequirements(context.handle, buffer, needs)
    return needs


def _type(context: Context, what: str, allowed: int, *wishes: int) -> int:
    index = context.memory_type(allowed, *wishes)
    if index is None:
        raise DeviceError(f"{what}: the device has no such memory")
    return index


def _allocated(context: Context, nbytes: int, index: int, chain: Any, what: str) -> Any:
    info = make("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=index, pNext=chain)
    return create(lib.vkAllocateMemory, "VkDeviceMemory", context.handle, info, what)


def _types_of(context: Context, pointer: Any, what: str) -> int:
    found = make("VkMemoryHostPointerPropertiesEXT")
    get = _function(context, "vkGetMemoryHostPointerPropertiesEXT")
    check(get(context.handle, _HOST, pointer, found), what)
    return int(found.memoryTypeBits)


def _function(context: Context, name: str) -> Any:
    address = lib.vkGetDeviceProcAddr(context.handle, name.encode())
    if address == NULL:
        raise DeviceError(f"{context.info.name}: its driver has no {name}")
    return ffi.cast(f"PFN_{name}", address)


def _free(context: Context, buffer: Any, memory: Any, host: Bytes | None) -> None:
    if context.inherited:
        return
    lib.vkDestroyBuffer(context.handle, buffer, NULL)
    lib.vkFreeMemory(context.handle, memory, NULL)
    context.release()
    del host
