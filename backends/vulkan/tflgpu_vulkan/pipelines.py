"""Pipelines: one for each distinct module, made in parallel, and the driver's cache of them."""

from __future__ import annotations

import contextlib
import struct
import weakref
from collections.abc import Iterator
from typing import Any

import attrs
from tflgpu.cache.disk_cache import DiskCache, cache_key
from tflgpu.contract.kernel_cache import KernelCache
from tflgpu.errors import CompileError, DeviceError
from tflgpu.language.check import check
from tflgpu.language.tree import Kernel

from tflgpu_vulkan.api import NULL, array, create, ffi, lib, make, result_name, vk
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.spirv.module import ENTRY_POINT, module_of, text_of

#: VkPipelineCacheHeaderVersionOne: length, version, vendor, device, UUID of the driver's build.
_HEADER = struct.Struct("<4I16s")


@attrs.frozen(eq=False)
class Pipeline:
    """A compiled kernel, and how its buffers are bound."""

    handle: Any
    layout: Layout


@attrs.frozen(eq=False)
class Layout:
    """How ``bindings`` storage buffers are bound; all kernels with as many share it."""

    bindings: int
    set_layout: Any
    pipeline_layout: Any


class Pipelines(KernelCache[int, bytes, Pipeline]):
    """Pipelines of one device, by module; a way is the bytes before each buffer. One that is
    forgotten is destroyed when no recording has it any more."""

    thread_name = "tflgpu-vulkan-compile"

    def __init__(self, context: Context, cache: DiskCache) -> None:
        super().__init__()
        self._context = context
        self._disk = cache
        self._key = cache_key("pipelines 1", context.details.fingerprint)
        self._forgotten: list[tuple[weakref.ref[Pipeline], Any]] = []  # with their handles
        self._layouts: dict[int, Layout] = {}
        self._saved = b""
        #: Bytes of the driver's cache when it last held what is on disk, and no more.
        self._known_size = -1
        #: Whether the driver was given pipelines that another process made; it may read them
        #: only when a pipeline is asked for.
        self._is_warm = False
        self._cache = self._kept_pipelines()

    def close(self) -> None:
        """Destroy everything; nothing may be running."""
        handle = self._context.handle
        self.clear()
        with self._lock:
            # Each leaves its list first: a signal may end this, and it is called again.
            while self._forgotten:
                _, forgotten = self._forgotten.pop()
                lib.vkDestroyPipeline(handle, forgotten, NULL)
            while self._layouts:
                _, layout = self._layouts.popitem()
                lib.vkDestroyPipelineLayout(handle, layout.pipeline_layout, NULL)
                lib.vkDestroyDescriptorSetLayout(handle, layout.set_layout, NULL)
            cache, self._cache = self._cache, NULL
            lib.vkDestroyPipelineCache(handle, cache, NULL)

    # Inside

    def _write(self, kernel: Kernel, way: int) -> bytes:
        # A name that is never defined would only be a KeyError in the printer.
        check(kernel)
        self._layout(len(kernel.buffers))
        return module_of(kernel, self._context.details.target, guard=way)

    def _make_all(self, items: Iterator[tuple[Kernel, bytes]]) -> None:
        self._destroy_unused()
        before = self.compiled
        with self._disk.reading([self._key] if self._is_warm else []):
            super()._make_all(items)
        if self.compiled > before:
            self._save()

    def _forget(self, made: Pipeline) -> None:
        self._forgotten.append((weakref.ref(made), made.handle))

    def _destroy_unused(self) -> None:
        """Destroy what was forgotten and no recording has any more."""
        # Each leaves the list first: a signal may end this.
        for entry in [e for e in self._forgotten if e[0]() is None]:
            self._forgotten.remove(entry)
            lib.vkDestroyPipeline(self._context.handle, entry[1], NULL)

    def _make(self, kernel: Kernel, code: bytes) -> Pipeline:
        layout = self._layout(len(kernel.buffers))
        self.count()
        handle = self._context.handle
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.memmove(words, code, len(code))
        info = make("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words)
        shader = ffi.new("VkShaderModule*")
        self._accept(lib.vkCreateShaderModule(handle, info, NULL, shader), kernel)
        stage = make(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=shader[0],
            pName=(name := ffi.new("char[]", ENTRY_POINT.encode())),
        )
        pipeline_info = make(
            "VkComputePipelineCreateInfo", stage=stage[0], layout=layout.pipeline_layout
        )
        pipeline = ffi.new("VkPipeline*")
        result = lib.vkCreateComputePipelines(handle, self._cache, 1, pipeline_info, NULL, pipeline)
        lib.vkDestroyShaderModule(handle, shader[0], NULL)
        del name  # the stage, copied into the other struct, pointed to it
        self._accept(result, kernel)
        return Pipeline(pipeline[0], layout)

    def _accept(self, result: int, kernel: Kernel) -> None:
        if result < 0:
            text = text_of(kernel, self._context.details.target)
            raise CompileError(
                f"the Vulkan driver refused kernel {kernel.name}: {result_name(result)}\n"
                f"--- source\n{text}"
            )

    def _layout(self, bindings: int) -> Layout:
        found = self._layouts.get(bindings)
        if found is not None:
            return found
        handle, what = self._context.handle, f"making a layout of {bindings} bindings"
        each = [
            make(
                "VkDescriptorSetLayoutBinding",
                binding=i,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for i in range(bindings)
        ]
        info = make(
            "VkDescriptorSetLayoutCreateInfo",
            bindingCount=bindings,
            pBindings=array("VkDescriptorSetLayoutBinding", each),
        )
        set_layout = create(
            lib.vkCreateDescriptorSetLayout, "VkDescriptorSetLayout", handle, info, what
        )
        layout_info = make(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=array("VkDescriptorSetLayout", [set_layout]),
        )
        try:
            pipeline_layout = create(
                lib.vkCreatePipelineLayout, "VkPipelineLayout", handle, layout_info, what
            )
        except DeviceError:
            lib.vkDestroyDescriptorSetLayout(handle, set_layout, NULL)
            raise
        found = self._layouts[bindings] = Layout(bindings, set_layout, pipeline_layout)
        return found

    # The driver's cache

    def _driver_cache(self, content: bytes) -> Any:
        """A cache that has what is in ``content``.

        Raises:
            DeviceError: the driver does not take it.
        """
        function, kind = lib.vkCreatePipelineCache, "VkPipelineCache"
        data = ffi.new("char[]", content)
        given = {"initialDataSize": len(content), "pInitialData": data} if content else {}
        info = make("VkPipelineCacheCreateInfo", **given)
        return create(function, kind, self._context.handle, info, "making a pipeline cache")

    def _kept_pipelines(self) -> Any:
        """A cache with what is on disk, or one with nothing."""
        content = self._load()
        if content:
            with self._disk.reading([self._key]) as is_safe, contextlib.suppress(DeviceError):
                if is_safe:
                    cache = self._driver_cache(content)
                    self._is_warm = True
                    self._known_size = self._size(cache)
                    return cache
        return self._driver_cache(b"")

    def _load(self) -> bytes | None:
        self._disk.sweep()
        content = self._disk.load(self._key)
        if content is not None and (why := self._objection(content)):
            self._disk.drop(self._key, why)
            return None
        return content

    def _objection(self, content: bytes) -> str:
        """Why this driver cannot have made it. Drivers look at the header too, some of them at
        less of it than they should."""
        if len(content) < _HEADER.size:
            return "it is shorter than a header"
        length, version, vendor, device, uuid = _HEADER.unpack_from(content)
        properties = ffi.new("VkPhysicalDeviceProperties*")
        lib.vkGetPhysicalDeviceProperties(self._context.details.physical, properties)
        own = (properties.vendorID, properties.deviceID, bytes(properties.pipelineCacheUUID))
        if not _HEADER.size <= length <= len(content) or version != 1:
            return "its header is unknown"
        return "" if (vendor, device, uuid) == own else "another device made it"

    def _save(self) -> None:
        """Keep what the driver compiled, together with what other processes have kept since."""
        # A cache that did not grow has nothing new. It is that of all models, so that reading the file
        # and the driver's copy would take longer than making the pipelines of one.
        size = self._size(self._cache)
        if size in (self._known_size, 0) or self._disk.is_unsafe(self._key):
            return
        other = self._load()
        if other and other != self._saved:
            with self._disk.reading([self._key]) as is_safe:
                if is_safe:
                    self._merge(other)
        with self._disk.reading([self._key], "proof") as is_safe:
            if not is_safe:
                return
            content = self._content(self._size(self._cache))
            if content is None or content == other or self._objection(content):
                self._known_size = size
                return
            try:  # what it cannot read itself is of no use to the next process
                made = self._driver_cache(content)
            except DeviceError:
                return
            lib.vkDestroyPipelineCache(self._context.handle, made, NULL)
        self._disk.store(self._key, content)
        self._saved, self._known_size = content, len(content)

    def _merge(self, content: bytes) -> None:
        handle = self._context.handle
        with contextlib.suppress(DeviceError):
            other = self._driver_cache(content)
            lib.vkMergePipelineCaches(handle, self._cache, 1, array("VkPipelineCache", [other]))
            lib.vkDestroyPipelineCache(handle, other, NULL)
            self._is_warm = True

    def _size(self, cache: Any) -> int:
        """Bytes of a driver's cache; 0 where they cannot be had."""
        size = ffi.new("size_t*")
        got = lib.vkGetPipelineCacheData(self._context.handle, cache, size, NULL)
        return int(size[0]) if got == vk.VK_SUCCESS else 0

    def _content(self, nbytes: int) -> bytes | None:
        """What the driver's cache has; None where it cannot be had."""
        handle, get = self._context.handle, lib.vkGetPipelineCacheData
        size = ffi.new("size_t*", nbytes)
        data = ffi.new("char[]", nbytes)
        if get(handle, self._cache, size, data) != vk.VK_SUCCESS:
            return None
        return bytes(ffi.buffer(data, size[0]))
