"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tflgpu.errors import DeviceError
from tflgpu.runtime.protocols import DispatchTime, Plan
from tflgpu.runtime.recording import BaseRecording, stray_write

from tflgpu_vulkan.blocks import Region
from tflgpu_vulkan.context import Commands, Context
from tflgpu_vulkan.memory import PlanMemory
from tflgpu_vulkan.outputs import Outputs, output_sets
from tflgpu_vulkan.pipelines import Pipeline
from tflgpu_vulkan.record import (
    Descriptors,
    Launch,
    Timers,
    record,
    record_download,
    record_one,
)


class VulkanRecording(BaseRecording[Outputs]):
    """A `Recording`: one command buffer, submitted by each run.

    With guard bands it has one for each dispatch, so that the one which writes outside a buffer
    can be named.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        memory: PlanMemory,
        pipelines: Sequence[Pipeline],
        on_close: Callable[[VulkanRecording], None],
    ) -> None:
        super().__init__()
        self._context = context
        self._memory = memory
        self._on_close = on_close
        self._inputs = tuple(memory.input_arrays)
        self._timers: Timers | None = None
        self._timed: tuple[Outputs, Any] | None = None
        self._single: list[Any] = []
        self._launches: list[Launch] = []
        self._commands = Commands(context)
        self._descriptors: Descriptors | None = None
        try:
            self._descriptors = Descriptors(context, pipelines, memory.bindings)
            self._launches = [
                Launch(dispatch, pipeline, tuple(regions), descriptors)
                for dispatch, pipeline, regions, descriptors in zip(
                    plan.dispatches, pipelines, memory.bindings, self._descriptors.sets, strict=True
                )
            ]
            if memory.band:
                self._single = [record_one(self._commands, launch) for launch in self._launches]
            into = partial(record, self._commands, memory, self._launches)
            again = partial(record_download, self._commands, memory)
            self._sets = output_sets(context, memory, into, again, self._commands.submit)
        except DeviceError:
            self._closed = self._released = (
                True  # `close`, when this object goes, has nothing left to do
            )
            self._release()
            raise

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._launches)

    def close(self) -> None:
        """Release everything; twice is harmless. Arrays that someone holds stay valid."""
        super().close()
        self._on_close(self)

    def __del__(self) -> None:
        # Dropped without having been closed (or half made): the device's objects go with it.
        with contextlib.suppress(Exception):
            self.close()

    # Inside

    def _wait_idle(self) -> None:
        self._context.wait_idle()

    def _release(self) -> None:
        if self._timers is not None:
            self._timers.release()
        self._commands.release()
        if self._descriptors is not None:
            self._descriptors.release()
        self._memory.release()
        self._launches = []
        self._timed = None
        self._single = []

    def _run(self) -> None:
        outputs = self._outputs.for_run()
        if self._memory.band:
            self._run_guarded()
        else:
            self._commands.submit(outputs.commands, "running")

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
        return [
            DispatchTime(launch.dispatch.label, launch.dispatch.kernel.name, seconds)
            for launch, seconds in zip(self._launches, self._timers.seconds(), strict=True)
        ]

    def _run_guarded(self) -> None:
        self._memory.poison()
        for launch, single in zip(self._launches, self._single, strict=True):
            self._commands.submit(single, f"running {launch.dispatch.label}")
            for region in launch.regions:
                self._check(region, launch)
        for region in self._memory.regions:
            self._check(region, None)

    def _check(self, region: Region, launch: Launch | None) -> None:
        damage = self._memory.damage(region)
        if damage:
            raise stray_write(damage, launch.dispatch if launch else None)
