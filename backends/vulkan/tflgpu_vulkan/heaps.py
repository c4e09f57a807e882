"""A device's heaps: blocks of each kind of memory, and copies between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.contract.heaps import Copy, Heaps, Kind

from tflgpu_vulkan.api import lib, make
from tflgpu_vulkan.barriers import Between, barrier
from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Commands, Context


class VulkanHeaps(Heaps[Block]):
    """Those of an opened device."""

    def __init__(self, context: Context) -> None:
        details = context.details
        super().__init__(
            alignment=details.alignment,
            limit=details.max_allocation,
            has_reached=details.has_writable_memory,
            has_cached=details.has_cached_memory,
        )
        self.context = context

    # Inside

    def _block(self, kind: Kind, nbytes: int) -> Block:
        return Block(self.context, nbytes, kind)

    def _copy(self, piece: Region, copies: Sequence[Copy[Block]], *, to_host: bool) -> None:
        commands = Commands(self.context)
        try:
            buffer = commands.begin()
            barrier(buffer, Between.SUBMISSIONS)
            for each in copies:
                ends: list[tuple[Any, int]] = [
                    (each.region.block.buffer, each.region.offset + each.at),
                    (piece.block.buffer, piece.offset + each.start),
                ]
                (source, source_at), (target, target_at) = ends if to_host else ends[::-1]
                copy = make(
                    "VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=each.nbytes
                )
                lib.vkCmdCopyBuffer(buffer, source, target, 1, copy)
            barrier(buffer, Between.SUBMISSIONS)
            if to_host:
                barrier(buffer, Between.DOWNLOADS_AND_HOST)
            commands.submit(commands.end(buffer), "copying")
        finally:
            commands.release()
