"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
from tflgpu.compiler.plan import OutputRef, Plan
from tflgpu.contract.device import DispatchTime
from tflgpu.contract.plan_recording import BasePlanRecording
from tflgpu.contract.pooled_memory import PooledMemory
from tflgpu.contract.pooled_outputs import PooledOutputs, output_sets

from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.pipelines import Pipeline
from tflgpu_vulkan.record import Descriptors, Launch, Timers, record, record_download, record_one

Outputs = PooledOutputs[Block]


class VulkanRecording(BasePlanRecording[Outputs, Region]):
    """A `Recording`: one command buffer, submitted by each run.

    With guard bands it has one for each dispatch, so that the one which writes outside a buffer
    can be named.
    """

    def __init__(
        self, context: Context, plan: Plan, memory: PooledMemory[Block],
        pipelines: Sequence[Pipeline],
    ) -> None:  # fmt: skip
        super().__init__(plan, memory)
        self._context = context
        # Whatever drops this when (an interruption while it is made, say): the device is there.
        context.retain()
        self._holds_device = True
        self._memory = memory
        self._in_place = memory.in_place
        self._inputs = tuple(memory.input_arrays)
        self._timers: Timers | None = None
        self._last: Any = None  # behind all that was begun, where a run was interrupted
        self._timed: tuple[Outputs, Any] | None = None
        self._single: list[Any] = []
        self._launches: list[Launch] = []
        self._commands = Commands(context, context.next_queue())
        self._descriptors: Descriptors | None = None
        try:
            self._descriptors = Descriptors(context, pipelines, self._regions)
            self._launches += [
                Launch(dispatch, pipeline, regions, descriptors)
                for dispatch, pipeline, regions, descriptors in zip(
                    plan.dispatches, pipelines, self._regions, self._descriptors.sets, strict=True
                )
            ]
            if memory.guarded:
                self._single = [record_one(self._commands, launch) for launch in self._launches]
            into = partial(record, self._commands, memory, self._launches)
            again = partial(record_download, self._commands, memory)
            self._sets = output_sets(memory, into, again, self._commands.submit)
            self._lendable = self._sets.lendable
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
        super()._release()
        if self._timers is not None:
            self._timers.release()
        self._commands.release()
        if self._descriptors is not None:
            self._descriptors.release()
        self._memory.release()
        self._launches = []
        self._timed = None
        self._single = []
        if self._holds_device:
            self._holds_device = False
            self._context.release()

    def _rebind(self) -> None:
        self._commands.clear()
        self._timed = None
        if self._descriptors is not None and self._launches:
            self._descriptors.write(self._regions)
        self._launches[:] = [
            attrs.evolve(launch, regions=regions)
            for launch, regions in zip(self._launches, self._regions, strict=True)
        ]

        def remake(outputs: Outputs) -> None:
            outputs.commands = record(self._commands, self._memory, self._launches, outputs.regions)
            outputs.download = None

        own = self._own(OutputRef)
        self._outputs.change([i for i in self._lendable if i in own], remake)

    def _begin(self) -> None:
        commands = self._outputs.for_run().commands
        self._context.start(commands, self._commands.fence, "running", self._commands.queue)

    def _is_over(self) -> bool:
        return self._context.is_over(self._commands.fence)

    def _end(self) -> None:
        self._context.finish(self._commands.fence, "running")

    def _profile(self) -> Sequence[DispatchTime]:
        if not self._context.details.tick or not self._launches:
            self._run()
            return []
        if self._timers is None:
            self._timers = Timers(self._context, len(self._launches))
        into = self._outputs.for_run()
        if self._timed is None or self._timed[0] is not into:
            timed = record(self._commands, self._memory, self._launches, into.regions, self._timers)
            self._timed = into, timed
        self._commands.submit(self._timed[1], "profiling")
        return self._times(self._timers.seconds())

    def _dispatch_alone(self, index: int) -> None:
        label = self._launches[index].dispatch.label
        self._commands.submit(self._single[index], f"running {label}")
