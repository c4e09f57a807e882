"""The driver's cache of pipelines."""

from __future__ import annotations

import struct
from typing import Any

from tflgpu.backend_kit.driver_cache import DriverCache
from tflgpu.cache.disk_cache import DiskCache, cache_key

from tflgpu_vulkan.api import NULL, array, create, ffi, lib, make, vk
from tflgpu_vulkan.context import Context

#: VkPipelineCacheHeaderVersionOne: length, version, vendor, device, UUID of the driver's build.
_HEADER = struct.Struct("<4I16s")


class PipelineCache(DriverCache[Any]):
    """A VkPipelineCache."""

    def __init__(self, context: Context, disk: DiskCache) -> None:
        self._context = context
        super().__init__(disk, cache_key("pipelines 1", context.details.fingerprint))

    def close(self) -> None:
        """Destroy it; twice is harmless."""
        handle, self.handle = self.handle, NULL
        self._free(handle)

    # Inside

    def _new(self, content: bytes) -> Any:
        function, kind = lib.vkCreatePipelineCache, "VkPipelineCache"
        data = ffi.new("char[]", content)
        given = {"initialDataSize": len(content), "pInitialData": data} if content else {}
        info = make("VkPipelineCacheCreateInfo", **given)
        return create(function, kind, self._context.handle, info, "making a pipeline cache")

    def _free(self, handle: Any) -> None:
        lib.vkDestroyPipelineCache(self._context.handle, handle, NULL)

    def _add(self, other: Any) -> None:
        caches = array("VkPipelineCache", [other])
        lib.vkMergePipelineCaches(self._context.handle, self.handle, 1, caches)

    def _size(self) -> int:
        size = ffi.new("size_t*")
        got = lib.vkGetPipelineCacheData(self._context.handle, self.handle, size, NULL)
        return int(size[0]) if got == vk.VK_SUCCESS else 0

    def _content(self) -> bytes | None:
        size = ffi.new("size_t*", nbytes := self._size())
        data = ffi.new("char[]", nbytes)
        got = lib.vkGetPipelineCacheData(self._context.handle, self.handle, size, data)
        return bytes(ffi.buffer(data, size[0])) if got == vk.VK_SUCCESS else None

    def _objection(self, content: bytes) -> str:
        """Drivers look at the header too, some of them at less of it than they should."""
        if len(content) < _HEADER.size:
            return "it is shorter than a header"
        length, version, vendor, device, uuid = _HEADER.unpack_from(content)
        properties = ffi.new("VkPhysicalDeviceProperties*")
        lib.vkGetPhysicalDeviceProperties(self._context.details.physical, properties)
        own = (properties.vendorID, properties.deviceID, bytes(properties.pipelineCacheUUID))
        if not _HEADER.size <= length <= len(content) or version != 1:
            return "its header is unknown"
        return "" if (vendor, device, uuid) == own else "another device made it"
