"""A device's heaps: blocks of each kind of memory, and copies between them."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.contract.heaps import Copy, Heaps, Kind
from tflgpu.contract.run_commands import exchange

from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.record import Writer


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
            writer = Writer(commands)
            exchange(writer, piece, copies, to_host=to_host)
            commands.submit(writer.end(), "copying")
        finally:
            commands.release()
