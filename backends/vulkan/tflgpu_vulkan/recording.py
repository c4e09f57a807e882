"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pooled_recording import PooledRecording
from tflgpu.compiler.plan import Plan

from tflgpu_vulkan.blocks import Block
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.pipelines import Pipeline
from tflgpu_vulkan.record import Descriptors, Timers, Writer


class VulkanRecording(PooledRecording[Block]):
    """A `Recording`: one command buffer, submitted by each run."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        memory: PooledMemory[Block],
        pipelines: Sequence[Pipeline],
    ) -> None:
        super().__init__(plan, memory)
        self._context = context
        # Whatever drops this when (an interruption while it is made, say): the device is there.
        context.retain()
        self._holds_device = True
        self._noted: Timers | None = None
        self._last: Any = None  # behind all that was begun, where a run was interrupted
        self._commands = Commands(context, context.next_queue())
        self._descriptors: Descriptors | None = None
        try:
            self._descriptors = Descriptors(context, pipelines, self._regions)
            bound = zip(pipelines, self._descriptors.sets, strict=True)
            self._compose(partial(Writer, self._commands), bound, self._commands.submit)
        except BaseException:
            self._closed = self._released = (
                True  # `close`, when this object goes, has nothing left to do
            )
            self._release()
            raise

    def __del__(self) -> None:
        # Dropped without having been closed (or half made): the device's objects go with it.
        with contextlib.suppress(Exception):
            self.close()

    # Inside

    def _wait_idle(self) -> None:
        self._context.wait_idle(self._commands.queue)

    def _is_idle(self) -> bool:
        if self._last is None:
            # Its own may belong to a run that never was begun.
            self._last = self._context.fence_behind(self._commands.queue)
        return self._context.is_over(self._last)

    def _release(self) -> None:
        if self._noted is not None:
            self._noted.release()
        self._commands.release()
        if self._descriptors is not None:
            self._descriptors.release()
        super()._release()
        if self._holds_device:
            self._holds_device = False
            self._context.release()

    def _bind_again(self) -> None:
        self._commands.clear()
        if self._descriptors is not None and self._launches:
            self._descriptors.write(self._regions)

    def _submit(self, commands: Any, what: str) -> None:
        self._commands.submit(commands, what)

    def _run(self) -> None:
        sets = self._sets
        if sets is None or not self._goes_on:
            super()._run()
        else:
            self._context.run(sets.for_run().commands, self._commands)

    def _begin(self) -> None:
        commands = self._outputs.for_run().commands
        own = self._commands
        self._context.start(commands, own.fence[0], "running", own.queue)

    def _sleep(self) -> None:
        self._context.sleep(self._commands.fence)

    def _is_over(self) -> bool:
        return self._context.is_over(self._commands.fence)

    def _end(self) -> None:
        self._context.finish(self._commands.fence, "running")

    def _timers(self) -> Timers | None:
        if self._noted is None and self._context.details.tick:
            self._noted = Timers(self._context, len(self._launches))
        return self._noted
