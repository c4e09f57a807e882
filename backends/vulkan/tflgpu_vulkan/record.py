"""Writing a plan into command buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tflgpu.compiler.plan import PlannedDispatch
from tflgpu.contract.hazards import Access, access_of, barriers
from tflgpu.contract.pooled_memory import PooledMemory

from tflgpu_vulkan.api import NULL, array, check, create, ffi, lib, make, vk
from tflgpu_vulkan.barriers import Between, barrier
from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.pipelines import Pipeline


@attrs.frozen(eq=False)
class Launch:
    """A dispatch with everything bound."""

    dispatch: PlannedDispatch
    pipeline: Pipeline
    regions: tuple[Region, ...]
    descriptors: Any  # an array of one descriptor set

    @property
    def access(self) -> Access:
        """The bytes that it reads and writes."""
        parts = [(id(r.block), r.offset, r.offset + r.nbytes) for r in self.regions]
        return access_of(self.dispatch, parts)

    def add_to(self, buffer: Any) -> None:
        """Bind and dispatch."""
        if not all(self.dispatch.groups):
            return
        point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        layout = self.pipeline.layout.pipeline_layout
        lib.vkCmdBindPipeline(buffer, point, self.pipeline.handle)
        lib.vkCmdBindDescriptorSets(buffer, point, layout, 0, 1, self.descriptors, 0, NULL)
        lib.vkCmdDispatch(buffer, *self.dispatch.groups)


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
        lib.vkDestroyDescriptorPool(self._context.handle, self._pool, NULL)
        self._pool = NULL


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

    def reset(self, buffer: Any) -> None:
        """Before the first stamp."""
        lib.vkCmdResetQueryPool(buffer, self._pool, 0, self._count)

    def stamp(self, buffer: Any, index: int) -> None:
        """Note the time when everything before is done."""
        stage = vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT
        lib.vkCmdWriteTimestamp(buffer, stage, self._pool, index)

    def seconds(self) -> list[float]:
        """The time between each pair."""
        stamps = ffi.new("uint64_t[]", self._count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        result = lib.vkGetQueryPoolResults(
            self._context.handle, self._pool, 0, self._count, ffi.sizeof(stamps), stamps, 8, flags
        )
        check(result, "reading timers")
        tick = self._context.details.tick
        return [(stamps[i + 1] - stamps[i]) * tick for i in range(0, self._count, 2)]

    def release(self) -> None:
        """Free them."""
        lib.vkDestroyQueryPool(self._context.handle, self._pool, NULL)


def record(
    commands: Commands,
    memory: PooledMemory[Block],
    launches: Sequence[Launch],
    staging: Sequence[Region],
    timers: Timers | None = None,
) -> Any:
    """One command buffer for a whole run: copies in, dispatches with the barriers that they
    need (every one of them where they are timed), copies of the outputs to ``staging``."""
    buffer = commands.begin()
    if timers:
        timers.reset(buffer)
    if _copy(buffer, memory.uploads()):
        barrier(buffer, Between.UPLOADS_AND_DISPATCHES)
    needed = barriers([launch.access for launch in launches])
    for index, launch in enumerate(launches):
        if needed[index] or timers:
            barrier(buffer, Between.DISPATCHES)
        if timers:
            timers.stamp(buffer, 2 * index)
        launch.add_to(buffer)
        if timers:
            barrier(buffer, Between.DISPATCHES)
            timers.stamp(buffer, 2 * index + 1)
    _download(buffer, memory, staging)
    barrier(buffer, Between.DISPATCHES_AND_HOST)
    if memory.bound:
        barrier(buffer, Between.SUBMISSIONS)
    return commands.end(buffer)


def record_download(
    commands: Commands, memory: PooledMemory[Block], staging: Sequence[Region]
) -> Any:
    """A command buffer that copies the outputs of the last run once more."""
    buffer = commands.begin()
    _download(buffer, memory, staging)
    return commands.end(buffer)


def record_one(commands: Commands, launch: Launch) -> Any:
    """A command buffer for one dispatch on memory that the host looks at afterwards."""
    buffer = commands.begin()
    launch.add_to(buffer)
    barrier(buffer, Between.DISPATCHES_AND_HOST)
    return commands.end(buffer)


def _download(buffer: Any, memory: PooledMemory[Block], staging: Sequence[Region]) -> None:
    pairs = memory.downloads(staging)
    if any(a is not b for a, b in pairs):
        barrier(buffer, Between.DISPATCHES_AND_DOWNLOADS)
        if _copy(buffer, pairs):
            barrier(buffer, Between.DOWNLOADS_AND_HOST)


def _copy(buffer: Any, pairs: Sequence[tuple[Region, Region]]) -> bool:
    """Copy regions; whether there was anything to copy."""
    any_bytes = False
    for source, target in pairs:
        if source.nbytes and source is not target:
            any_bytes = True
            copy = make(
                "VkBufferCopy",
                srcOffset=source.offset, dstOffset=target.offset, size=source.nbytes,
            )  # fmt: skip
            lib.vkCmdCopyBuffer(buffer, source.block.buffer, target.block.buffer, 1, copy)
    return any_bytes


def _buffer(region: Region) -> Any:
    offset, size = region.bound
    return make("VkDescriptorBufferInfo", buffer=region.block.buffer, offset=offset, range=size)
