"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.lending import OutputSets
from tflgpu.runtime.protocols import DispatchTime, Plan

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

_T = TypeVar("_T")


class VulkanRecording:
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
        self._context = context
        self._memory = memory
        self._on_close = on_close
        self._lock = threading.Lock()
        self._closed = False
        self._failure = ""
        self._inputs = tuple(memory.input_arrays)
        self._outputs: OutputSets[Outputs] | None = None
        self._guarded_outputs = tuple(memory.output_arrays) if memory.band else ()
        self._timers: Timers | None = None
        self._timed: tuple[Outputs | None, Any] | None = None
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
            else:
                into = partial(record, self._commands, memory, self._launches)
                again = partial(record_download, self._commands, memory)
                self._outputs = output_sets(context, memory, into, again, self._commands.submit)
        except DeviceError:
            self._release()
            raise

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per plan input."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per plan output."""
        return self._guarded_outputs if self._outputs is None else self._outputs.current.arrays

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._launches)

    def run(self) -> None:
        """Upload, run every dispatch, download; return when the outputs are there.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run, or, with guard bands, a
                kernel wrote outside its buffers.
        """
        with self._lock:
            self._check_usable()
            self._failing(self._run_guarded if self._outputs is None else self._run)

    def profile(self) -> Sequence[DispatchTime]:
        """Run once with a timer around every dispatch, each of which waits for the one before.
        Empty where the queue has no timestamps.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run.
        """
        if not self._context.details.tick or not self._launches:
            self.run()
            return []
        with self._lock:
            self._check_usable()
            return self._failing(self._run_timed)

    def lend(self, index: int) -> Array | None:
        """Output ``index`` of the last run, for the caller to keep (see `Lender`); None for small
        outputs, where host and device share memory, and while too many are kept.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run.
        """
        with self._lock:
            self._check_usable()
            return None if self._outputs is None else self._failing(self._outputs.lend, index)

    def settle(self) -> None:
        """Let `outputs` be memory that nobody was lent, with the results of the last run.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run, or memory ran out.
        """
        with self._lock:
            self._check_usable()
            if self._outputs is not None:
                self._failing(self._outputs.settle)

    def close(self) -> None:
        """Release everything; twice is harmless. Arrays that someone holds stay valid."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._inputs = self._guarded_outputs = ()
            if self._failure:
                self._context.wait_idle()  # something of it may be running
            self._release()
        self._on_close(self)

    def __del__(self) -> None:
        # Dropped without having been closed (or half made): the device's objects go with it.
        with contextlib.suppress(Exception):
            self.close()

    # Inside

    def _failing(self, action: Callable[..., _T], *arguments: Any) -> _T:
        """Do what no later run may follow if it fails."""
        try:
            return action(*arguments)
        except BaseException as error:
            # An interrupted run too: it is still on the device.
            self._failure = str(error) or type(error).__name__
            raise

    def _release(self) -> None:
        if self._timers is not None:
            self._timers.release()
        if self._outputs is not None:
            self._outputs.release()
        self._commands.release()
        if self._descriptors is not None:
            self._descriptors.release()
        self._memory.release()
        self._launches = []
        self._timed = None
        self._single = []

    def _check_usable(self) -> None:
        if self._closed:
            raise StateError("this recording is closed")
        if self._failure:
            raise DeviceError(f"an earlier run of this recording failed: {self._failure}")

    def _run(self) -> None:
        assert self._outputs is not None
        self._commands.submit(self._outputs.for_run().commands, "running")

    def _run_timed(self) -> list[DispatchTime]:
        if self._timers is None:
            self._timers = Timers(self._context, len(self._launches))
        into = self._outputs.for_run() if self._outputs is not None else None
        if self._timed is None or self._timed[0] is not into:
            regions = self._memory.output_staging if into is None else into.regions
            timed = record(self._commands, self._memory, self._launches, regions, self._timers)
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
            blame = (
                f"dispatch {launch.dispatch.label}, kernel {launch.dispatch.kernel.name}"
                if launch
                else "some dispatch that does not use it"
            )
            raise DeviceError(f"{blame}: {damage}")
