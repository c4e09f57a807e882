"""A device's heaps: blocks of each kind of memory, and copies between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tflgpu.backend_kit.heaps import HeapKind, Heaps, PieceCopy
from tflgpu.backend_kit.run_commands import exchange
from tflgpu.errors import DeviceError

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
        #: Kept for the next copy: a pool of commands takes a driver a millisecond to make.
        self._commands: list[Commands] = []

    def release(self) -> None:
        """Free the pools, and the commands that are kept for copies."""
        super().release()
        while self._commands:
            self._commands.pop().release()

    # Inside

    def _block(self, kind: HeapKind, nbytes: int) -> Block:
        return Block(self.context, nbytes, kind)

    def _copy(self, piece: Region, copies: Sequence[PieceCopy[Block]], *, to_host: bool) -> None:
        commands = self._taken()
        is_done = False
        try:
            writer = Writer(commands)
            exchange(writer, piece, copies, to_host=to_host)
            commands.submit(writer.end(), "copying")
            is_done = True
        finally:
            if not is_done:  # a signal may have ended the wait, and the device be at it still
                with suppress(DeviceError):
                    self.context.wait_idle(commands.queue)
            if is_done and not self._commands:
                commands.clear()
                self._commands.append(commands)
            else:
                commands.release()

    def _taken(self) -> Commands:
        # Threads may ask at once: whoever takes them has them alone.
        with suppress(IndexError):
            return self._commands.pop()
        return Commands(self.context)
