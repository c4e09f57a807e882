"""What recordings of plans have in common, for backends that want it: memory, the names of their
dispatches, and runs between guard bands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic

from tflgpu.runtime.lending import S
from tflgpu.runtime.plan_memory import BasePlanMemory, R
from tflgpu.runtime.protocols import DispatchTime, Plan
from tflgpu.runtime.recording import BaseRecording, stray_write


class BasePlanRecording(BaseRecording[S], Generic[S, R]):
    """A `BaseRecording` of a plan in a `BasePlanMemory`.

    A subclass has, besides what `BaseRecording` asks for, the three parts of a run between guard
    bands: `_upload`, `_dispatch_alone` and `_download`. Each returns when the device is done.
    """

    def __init__(
        self,
        plan: Plan,
        memory: BasePlanMemory[R],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Bind a plan to memory that has its constants, inputs and outputs.

        Raises:
            DeviceError: memory ran out.
        """
        super().__init__(lock)
        self._plan_memory = memory
        self._goes_on = not memory.guarded
        self._planned = plan.dispatches
        self._regions = memory.bind(plan)

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._planned)

    # For subclasses to write

    def _upload(self) -> None:
        """Let the device have the inputs."""

    def _dispatch_alone(self, index: int) -> None:
        """Run one dispatch of the plan."""
        raise NotImplementedError

    def _download(self) -> None:
        """Let the host have the outputs."""

    # What they use

    def _run(self) -> None:
        if self._goes_on:
            self._begin()
            self._end()
        else:
            self._run_between_bands()

    def _run_between_bands(self) -> None:
        """Run dispatch by dispatch, so that the one which writes outside a buffer can be named.

        Raises:
            DeviceError: one does.
        """
        memory = self._plan_memory
        self._outputs.for_run()
        memory.poison()
        self._upload()
        for index, (planned, regions) in enumerate(zip(self._planned, self._regions, strict=True)):
            self._dispatch_alone(index)
            for region in dict.fromkeys(regions):
                damage = memory.damage(region)
                if damage:
                    raise stray_write(damage, planned)
        for region in memory.regions:
            damage = memory.damage(region)
            if damage:
                raise stray_write(damage, None)
        self._download()

    def _times(self, seconds: Sequence[float]) -> list[DispatchTime]:
        """Names for the times of the dispatches."""
        return [
            DispatchTime(planned.label, planned.kernel.name, time)
            for planned, time in zip(self._planned, seconds, strict=True)
        ]
