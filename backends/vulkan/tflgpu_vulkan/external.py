"""Memory that the device shares with others: the host's, imported, and what is exported by a file
descriptor."""

from __future__ import annotations

from typing import Any

from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.contract.buffers import Bytes
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, check, ffi, lib, make, vk
from tflgpu_vulkan.blocks import Allocation
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
        allocation = Allocation(context, memory.nbytes, what, _HOST)
        with releasing_on_error(allocation):
            pointer, needs = ffi.cast("void*", memory.ctypes.data), allocation.needs
            # Where the driver wants more than there is, none of its types is right.
            fits = needs.memoryTypeBits if needs.size <= memory.nbytes else 0
            allowed = _types_of(context, pointer, what) & fits
            chain = make("VkImportMemoryHostPointerInfoEXT", handleType=_HOST, pHostPointer=pointer)
            coherent = vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
            allocation.bind(memory.nbytes, allowed, coherent, chain=chain)
        self.buffer = allocation.handle
        # The array lives as long as the device may reach it.
        self._free = allocation.end_with(self, memory)

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
        self._context = context
        what = f"allocating {nbytes} bytes of memory to be shared"
        allocation = Allocation(context, nbytes, what, _FD)
        self.buffer, needs = allocation.handle, allocation.needs
        self.allocated = int(needs.size)
        with releasing_on_error(allocation):
            local = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
            # One allocation for one buffer: some drivers share no others.
            alone = make("VkMemoryDedicatedAllocateInfo", buffer=self.buffer)
            chain = make("VkExportMemoryAllocateInfo", handleTypes=_FD, pNext=alone)
            allocation.bind(self.allocated, needs.memoryTypeBits, local, 0, chain=chain)
        self._memory = allocation.memory
        self._free = allocation.end_with(self)

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
