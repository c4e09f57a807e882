"""What a plan's command buffers are made of: commands, sets of descriptors, timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.backend_kit.plan_recording import Span
from tflgpu.backend_kit.run_commands import Between, Launch

from tflgpu_vulkan.api import NULL, array, check, create, ffi, lib, make, vk
from tflgpu_vulkan.barriers import ARGUMENTS
from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.pipelines import Pipeline


class Writer:
    """A command buffer that is being recorded: `tflgpu.backend_kit.run_commands.RunCommands`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._buffer = commands.begin()

    def copy(self, source: tuple[Block, int], target: tuple[Block, int], nbytes: int) -> None:
        """Copy bytes between blocks."""
        (from_, source_at), (to, target_at) = source, target
        copy = make("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=nbytes)
        lib.vkCmdCopyBuffer(self._buffer, from_.buffer, to.buffer, 1, copy)

    def barrier(self, between: Between) -> None:
        """Let what follows wait for what came."""
        lib.vkCmdPipelineBarrier(self._buffer, *ARGUMENTS[between])

    def launch(self, launch: Launch[Block]) -> None:
        """Bind and dispatch; what is bound is a pipeline and an array of one descriptor set."""
        pipeline, descriptors = launch.bound
        point, layout = vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout.pipeline_layout
        lib.vkCmdBindPipeline(self._buffer, point, pipeline.handle)
        lib.vkCmdBindDescriptorSets(self._buffer, point, layout, 0, 1, descriptors, 0, NULL)
        lib.vkCmdDispatch(self._buffer, *launch.dispatch.groups)

    def stamp(self, timers: Timers, index: int) -> None:
        """Note the time when everything before is done."""
        timers.stamp(self._buffer, index)

    def end(self) -> Any:
        """What `Commands.submit` takes."""
        return self._commands.end(self._buffer)


class Descriptors:
    """A set of descriptors for each dispatch, written once."""

    def __init__(
        self,
        context: Context,
        pipelines: Sequence[Pipeline],
        bindings: Sequence[Sequence[Region]],
    ) -> None:
        self._context = context
        self._pool: Any = NULL
        self.sets: list[Any] = []
        if not pipelines:
            return
        handle, what = context.handle, "making descriptors"
        kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        size = make(
            "VkDescriptorPoolSize", type=kind, descriptorCount=sum(len(b) for b in bindings)
        )
        info = make(
            "VkDescriptorPoolCreateInfo",
            maxSets=len(pipelines),
            poolSizeCount=1,
            pPoolSizes=array("VkDescriptorPoolSize", [size]),
        )
        self._pool = create(lib.vkCreateDescriptorPool, "VkDescriptorPool", handle, info, what)
        layouts = array("VkDescriptorSetLayout", [p.layout.set_layout for p in pipelines])
        allocation = make(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._pool,
            descriptorSetCount=len(pipelines),
            pSetLayouts=layouts,
        )
        made = ffi.new("VkDescriptorSet[]", len(pipelines))
        check(lib.vkAllocateDescriptorSets(handle, allocation, made), what)
        self.sets = [array("VkDescriptorSet", [one]) for one in made]
        self.write(bindings)

    def write(self, bindings: Sequence[Sequence[Region]]) -> None:
        """Let them name other regions; no command buffer that uses them may be running, and those
        that do are recorded anew."""
        kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        writes = [
            make(
                "VkWriteDescriptorSet",
                dstSet=one[0],
                # Those after the first go to the bindings that follow it.
                descriptorCount=len(regions),
                descriptorType=kind,
                pBufferInfo=array("VkDescriptorBufferInfo", [_buffer(r) for r in regions]),
            )
            for one, regions in zip(self.sets, bindings, strict=True)
        ]
        lib.vkUpdateDescriptorSets(
            self._context.handle, len(writes), array("VkWriteDescriptorSet", writes), 0, NULL
        )

    def release(self) -> None:
        """Free them."""
        pool, self._pool = self._pool, NULL  # first: a signal may end this, and it is called again
        lib.vkDestroyDescriptorPool(self._context.handle, pool, NULL)


class Timers:
    """Two timestamps for each dispatch."""

    def __init__(self, context: Context, count: int) -> None:
        self._context = context
        self._count = 2 * count
        info = make(
            "VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=self._count
        )
        self._pool = create(
            lib.vkCreateQueryPool, "VkQueryPool", context.handle, info, "making timers"
        )

    def stamp(self, buffer: Any, index: int) -> None:
        """Note the time when everything before is done; the first forgets what was noted."""
        if not index:
            lib.vkCmdResetQueryPool(buffer, self._pool, 0, self._count)
        stage = vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT
        lib.vkCmdWriteTimestamp(buffer, stage, self._pool, index)

    def spans(self) -> list[Span]:
        """When each pair begins, since the first one did, and the time between the two."""
        stamps = ffi.new("uint64_t[]", self._count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        result = lib.vkGetQueryPoolResults(
            self._context.handle, self._pool, 0, self._count, ffi.sizeof(stamps), stamps, 8, flags
        )
        check(result, "reading timers")
        details = self._context.details
        full, tick = 2**details.tick_bits, details.tick
        return [
            (
                ((stamps[i] - stamps[0]) % full) * tick,
                ((stamps[i + 1] - stamps[i]) % full) * tick,
            )
            for i in range(0, self._count, 2)
        ]

    def release(self) -> None:
        """Free them."""
        pool, self._pool = self._pool, NULL
        lib.vkDestroyQueryPool(self._context.handle, pool, NULL)


def _buffer(region: Region) -> Any:
    offset, size = region.bound
    return make("VkDescriptorBufferInfo", buffer=region.block.buffer, offset=offset, range=size)
