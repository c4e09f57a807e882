"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from ctypes import c_void_p
from functools import partial
from typing import Any

import attrs
import pyopencl as cl
from tflgpu.backend_kit.plan_recording import Span
from tflgpu.backend_kit.staged_recording import StagedRecording
from tflgpu.backend_kit.staging import Outline, Staging
from tflgpu.compiler.plan import Plan, PlannedDispatch
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.finish import SHORT, Marker, finish
from tflgpu_opencl.memory import Memory, Region
from tflgpu_opencl.staging import READ_WRITE, Mapped, pinned_array, staged


@attrs.frozen(eq=False)
class Launch:
    """A dispatch with its own kernel object, whose arguments are set."""

    dispatch: PlannedDispatch
    kernel: Any

    def add_to(self, commands: Commands, event: c_void_p | None = None) -> None:
        """Add it to a list of commands; ``event`` as `Native.kernel` takes it."""
        dispatch = self.dispatch
        label = f"dispatch {dispatch.label}, kernel {dispatch.kernel.name}"
        commands.kernel(self.kernel, dispatch.groups, dispatch.kernel.workgroup, label, event)


def _spans(events: Sequence[Any]) -> list[Span]:
    """What the device notes of events, in whole nanoseconds since the first one began."""
    notes = [event and (event.profile.start, event.profile.end) for event in events]
    first = min((note[0] for note in notes if note), default=0)
    spans, last = [], first
    for note in notes:
        start, last = note or (last, last)
        spans.append(((start - first) * 1e-9, (last - start) * 1e-9))
    return spans


def _add(launches: Sequence[Launch], commands: Commands) -> None:
    for launch in launches:
        launch.add_to(commands)


class OpenCLRecording(StagedRecording[Commands, Region]):
    """A `Recording` on one in-order queue, which keeps dispatches in their order."""

    def __init__(
        self,
        context: Any,
        plan: Plan,
        memory: Memory,
        kernels: Sequence[Any],
    ) -> None:
        self._context = context
        self._queue = queue = memory.queue
        self._memory = memory
        self._launches = [
            Launch(dispatch, kernel)
            for dispatch, kernel in zip(plan.dispatches, kernels, strict=True)
        ]
        self._profiling_queue: Any = None
        # Runs of one plan take about the same time, so the last one tells what to expect. A CPU's
        # threads and a blocked one wake each other; there, asking is quicker.
        self._is_gpu = bool(queue.device.type & cl.device_type.GPU)
        self._took = math.inf
        self._start = 0.0
        self._marker: Marker | None = None  # behind a run that is watched
        self._last: list[Marker] = []  # behind all that was begun, where a run was interrupted
        inputs, outputs = (
            [staged(context, memory, io, is_input=is_input) for io in ios]
            for is_input, ios in ((True, plan.inputs), (False, plan.outputs))
        )
        new, kernels_of = partial(Commands, queue), partial(_add, self._launches)
        ledger = memory.ledger

        def arrays() -> list[Array]:
            return [pinned_array(context, queue, io, ledger) for io in plan.outputs]

        done = partial(finish, queue, "reading outputs")
        super().__init__(plan, memory, Outline(new, inputs, outputs, kernels_of), arrays, done)

    # Inside

    def _bind_kernels(self) -> None:
        pairs = zip(self._planned, self._launches, strict=True)
        self._launches[:] = [Launch(planned, launch.kernel) for planned, launch in pairs]
        for launch, regions in zip(self._launches, self._regions, strict=True):
            with device_errors(f"binding {launch.dispatch.label}"):
                for i, region in enumerate(regions):
                    launch.kernel.set_arg(i, region.buffer)

    def _elsewhere(self, own: Staging[Commands], region: Region) -> Staging[Commands]:
        if region.host is None:
            return super()._elsewhere(own, region)
        return Mapped(own.array, region, region.host, READ_WRITE)

    def _finish(self) -> None:
        finish(self._queue, "running")

    def _wait_idle(self) -> None:
        for queue in (self._queue, self._profiling_queue):
            if queue is not None:
                finish(queue, "closing")

    def _is_idle(self) -> bool:
        if not self._last:
            queues = (self._queue, self._profiling_queue)
            self._last = [Marker(queue, "closing") for queue in queues if queue is not None]
        return all(marker.is_over() for marker in self._last)

    def _begin(self) -> None:
        self._start = time.perf_counter()
        self._outputs.for_run().commands.submit()

    def _watch(self) -> None:
        self._marker = Marker(self._queue, "running")

    def _sleep(self) -> None:
        if self._marker is not None:
            self._marker.sleep()

    def _is_over(self) -> bool:
        return self._marker is None or self._marker.is_over()

    def _end(self) -> None:
        if self._marker is not None:
            marker, self._marker = self._marker, None
            marker.finish()
            return
        finish(self._queue, "running", is_short=self._is_gpu and self._took < SHORT)
        self._took = time.perf_counter() - self._start

    def _release(self) -> None:
        super()._release()
        self._launches.clear()
        # A device that is lost cannot release what it held; that is no news here. What others hold
        # as well is let go of all the same.
        with contextlib.suppress(DeviceError):
            finish(self._queue, "closing")
            with device_errors("closing"):
                for staging in (*self._staging[0], *self._staging[1]):
                    staging.release()
        with contextlib.suppress(DeviceError), device_errors("closing"):
            self._memory.release()
        self._staging = [], []
        self._profiling_queue = None

    def _profile(self) -> Sequence[DispatchTime]:
        if self._profiling_queue is None:
            timed = cl.command_queue_properties.PROFILING_ENABLE
            with device_errors("making a queue with timers"):
                self._profiling_queue = cl.CommandQueue(self._context, properties=timed)
        outputs = self._outputs.for_run()
        self._before.submit()
        self._finish()
        with device_errors("profiling"):
            events = self._timed()
            finish(self._profiling_queue, "profiling")
            spans = _spans(events)
        outputs.download.submit()
        self._finish()
        return self._times(spans)

    def _timed(self) -> list[Any]:
        """Run the kernels; an event of each, None where it has no work items."""
        commands, slots = Commands(self._profiling_queue), [c_void_p() for _ in self._launches]
        for launch, slot in zip(self._launches, slots, strict=True):
            launch.add_to(commands, slot)
        try:
            commands.submit()
        finally:
            events = [cl.Event.from_int_ptr(s.value, False) if s.value else None for s in slots]
        return events

    def _dispatch_alone(self, index: int) -> None:
        single = self._outline.new()
        self._launches[index].add_to(single)
        single.submit()
        self._finish()
