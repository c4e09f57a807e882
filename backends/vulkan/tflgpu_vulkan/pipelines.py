"""Pipelines: one for each distinct module, made in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import attrs
from tflgpu.backend_kit.kernel_cache import OwnedKernels
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.errors import CompileError, DeviceError
from tflgpu.language.kernel import Kernel

from tflgpu_vulkan.api import NULL, array, create, ffi, lib, make, result_name, vk
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.pipeline_cache import PipelineCache
from tflgpu_vulkan.spirv.target import ENTRY_POINT

#: What threads that make pipelines use of cffi, which makes a type when it is first asked for.
#: Where two threads are the first to do so, it has been seen to end the process by an assertion.
_STRUCTS = (
    "VkShaderModuleCreateInfo",
    "VkPipelineShaderStageCreateInfo",
    "VkComputePipelineCreateInfo",
    "VkDescriptorSetLayoutBinding",
    "VkDescriptorSetLayoutCreateInfo",
    "VkPipelineLayoutCreateInfo",
)
_TYPES = (
    *("uint32_t[]", "char[]", "VkShaderModule*", "VkPipeline*", "VkDescriptorSetLayoutBinding[]"),
    *("VkDescriptorSetLayout[]", "VkDescriptorSetLayout*", "VkPipelineLayout*"),
)
_FUNCTIONS = (
    *("vkCreateShaderModule", "vkDestroyShaderModule", "vkCreateComputePipelines"),
    *("vkCreateDescriptorSetLayout", "vkDestroyDescriptorSetLayout", "vkCreatePipelineLayout"),
)


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


class Pipelines(OwnedKernels[int, bytes, Pipeline]):
    """Pipelines of one device, by module; a way is the bytes before each buffer."""

    thread_name = "tflgpu-vulkan-compile"

    def __init__(self, context: Context, disk: DiskCache) -> None:
        super().__init__()
        self._context = context
        self._layouts: dict[int, Layout] = {}
        self._making = threading.Lock()
        self._cache = PipelineCache(context, disk)
        for kind in _STRUCTS:
            make(kind)
        for kind in _TYPES:
            ffi.typeof(kind)
        for name in _FUNCTIONS:
            getattr(lib, name)

    def close(self) -> None:
        """Destroy everything; nothing may be running."""
        handle = self._context.handle
        self.destroy()
        with self._lock:
            # Each leaves its list first: a signal may end this, and it is called again.
            while self._layouts:
                _, layout = self._layouts.popitem()
                lib.vkDestroyPipelineLayout(handle, layout.pipeline_layout, NULL)
                lib.vkDestroyDescriptorSetLayout(handle, layout.set_layout, NULL)
            self._cache.close()

    def text(self, kernel: Kernel) -> str:
        """The SPIR-V assembly of a kernel.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        from tflgpu_vulkan.spirv.module import text_of  # as in `_write`

        return text_of(kernel, self._context.details.target)

    # Inside

    def _write(self, kernel: Kernel, way: int) -> bytes:
        # Most starts print nothing: what they use was kept.
        from tflgpu.language.check import check

        from tflgpu_vulkan.spirv.module import module_of

        # A name that is never defined would only be a KeyError in the printer.
        check(kernel)
        return module_of(kernel, self._context.details.target, guard=way)

    def _make_ahead(self, kernel: Kernel, code: bytes) -> Pipeline:
        with self._cache.using():
            return super()._make_ahead(kernel, code)

    def _make_all(self, items: Iterator[tuple[Kernel, bytes]]) -> None:
        with self._cache.using():
            super()._make_all(items)
        self._cache.save()  # which looks whether there is anything new

    def _handle_of(self, made: Pipeline) -> Any:
        return made.handle

    def _destroy(self, handle: Any) -> None:
        lib.vkDestroyPipeline(self._context.handle, handle, NULL)

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
        cache = self._cache.handle
        result = lib.vkCreateComputePipelines(handle, cache, 1, pipeline_info, NULL, pipeline)
        lib.vkDestroyShaderModule(handle, shader[0], NULL)
        del name  # the stage, copied into the other struct, pointed to it
        self._accept(result, kernel)
        return Pipeline(pipeline[0], layout)

    def _accept(self, result: int, kernel: Kernel) -> None:
        if result < 0:
            raise CompileError(
                f"the Vulkan driver refused kernel {kernel.name}: {result_name(result)}\n"
                f"--- source\n{self.text(kernel)}"
            )

    def _layout(self, bindings: int) -> Layout:
        with self._making:  # several threads make pipelines
            found = self._layouts.get(bindings)
            if found is None:
                found = self._layouts[bindings] = self._new_layout(bindings)
            return found

    def _new_layout(self, bindings: int) -> Layout:
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
        return Layout(bindings, set_layout, pipeline_layout)
