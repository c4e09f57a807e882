"""A plan bound to a device, run again and again."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import pyopencl as cl
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, Ref
from tflgpu.contract.device import DispatchTime
from tflgpu.contract.plan_recording import BasePlanRecording
from tflgpu.contract.staging import Outline, StagedOutputs, Staging, output_sets
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.finish import SHORT, Marker, finish
from tflgpu_opencl.memory import Memory, Region
from tflgpu_opencl.native import Native
from tflgpu_opencl.staging import elsewhere, pinned_array


@attrs.frozen(eq=False)
class Launch:
    """A dispatch with its own kernel object, whose arguments are set."""

    dispatch: PlannedDispatch
    kernel: Any

    def add_to(self, commands: Commands) -> None:
        """Add it to a list of commands."""
        dispatch = self.dispatch
        label = f"dispatch {dispatch.label}, kernel {dispatch.kernel.name}"
        commands.kernel(self.kernel, dispatch.groups, dispatch.kernel.workgroup, label)


def _add(launches: Sequence[Launch], commands: Commands) -> None:
    for launch in launches:
        launch.add_to(commands)


class OpenCLRecording(BasePlanRecording[StagedOutputs[Commands], Region]):
    """A `Recording` on one in-order queue, which keeps dispatches in their order."""

    def __init__(
        self,
        context: Any,
        queue: Any,
        native: Native | None,
        plan: Plan,
        memory: Memory,
        inputs: Sequence[Staging[Commands]],
        outputs: Sequence[Staging[Commands]],
        kernels: Sequence[Any],
    ) -> None:
        super().__init__(plan, memory)
        self._context = context
        self._queue = queue
        self._native = native
        self._memory = memory
        self._staging = list(inputs), list(outputs)  # in memory of its own
        self._launches = [
            Launch(dispatch, kernel)
            for dispatch, kernel in zip(plan.dispatches, kernels, strict=True)
        ]
        self._set_arguments()
        self._inputs = tuple(s.array for s in inputs)
        self._profiling_queue: Any = None
        # Runs of one plan take about the same time, so the last one tells what to expect. A CPU's
        # threads and a blocked one wake each other; there, asking is quicker.
        self._is_gpu = bool(queue.device.type & cl.device_type.GPU)
        self._took = math.inf
        self._start = 0.0
        self._marker: Marker | None = None  # behind a run that is watched
        self._last: list[Marker] = []  # behind all that was begun, where a run was interrupted
        self._outline = Outline[Commands](
            partial(Commands, queue, native), list(inputs), list(outputs),
            partial(_add, self._launches),
        )  # fmt: skip
        self._before = self._outline.before()
        ledger = memory.ledger

        def arrays() -> list[Array]:
            return [pinned_array(context, queue, io, ledger) for io in plan.outputs]

        done = partial(finish, queue, "reading outputs")
        self._sets = output_sets(self._outline, arrays, done, lends=not memory.guarded)

    # Inside

    @property
    def copies(self) -> tuple[int, int]:
        """As `BasePlanRecording.copies`; what host and device share is not copied."""
        return self._outline.copies

    def _set_arguments(self) -> None:
        for launch, regions in zip(self._launches, self._regions, strict=True):
            with device_errors(f"binding {launch.dispatch.label}"):
                for i, region in enumerate(regions):
                    launch.kernel.set_arg(i, region.buffer)

    def _rebind(self) -> None:
        self._set_arguments()
        outline, (inputs, outputs) = self._outline, self._staging
        outline.inputs[:] = [self._staged(InputRef(i), s) for i, s in enumerate(inputs)]
        outline.outputs[:] = [self._staged(OutputRef(i), s) for i, s in enumerate(outputs)]
        self._before = outline.before()
        self._outputs.change(outline.lendable, outline.remake)

    def _staged(self, ref: Ref, own: Staging[Commands]) -> Staging[Commands]:
        region = self._memory.bound.get(ref)
        return own if region is None else elsewhere(own, region, self._native)

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
        self._before = Commands(self._queue, self._native)
        self._sets = None  # its commands hold kernels and buffers
        self._outline.clear()
        self._launches.clear()
        # A device that is lost cannot release what it held; that is no news here. What others hold as
        # well is let go of all the same.
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
            events = [self._timed(launch) for launch in self._launches]
            finish(self._profiling_queue, "profiling")
            seconds = [(e.profile.end - e.profile.start) * 1e-9 if e else 0.0 for e in events]
        outputs.download.submit()
        self._finish()
        return self._times(seconds)

    def _timed(self, launch: Launch) -> Any:
        workgroup = launch.dispatch.kernel.workgroup
        size = tuple(g * w for g, w in zip(launch.dispatch.groups, workgroup, strict=True))
        if not all(size):
            return None
        return cl.enqueue_nd_range_kernel(self._profiling_queue, launch.kernel, size, workgroup)

    def _dispatch_alone(self, index: int) -> None:
        single = Commands(self._queue, self._native)
        self._launches[index].add_to(single)
        single.submit()
        self._finish()
