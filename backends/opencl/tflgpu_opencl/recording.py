"""A plan bound to a device, run again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.runtime.protocols import DispatchTime, PlannedDispatch, PlannedIO
from tflgpu.runtime.recording import BaseRecording, stray_write

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.finish import SHORT, finish
from tflgpu_opencl.memory import Memory, Region
from tflgpu_opencl.native import Native
from tflgpu_opencl.outputs import Outputs, output_sets
from tflgpu_opencl.staging import Staging


@attrs.frozen(eq=False)
class Launch:
    """A dispatch with its own kernel object, whose arguments are set."""

    dispatch: PlannedDispatch
    kernel: Any
    regions: tuple[Region, ...]

    def add_to(self, commands: Commands) -> None:
        """Add it to a list of commands."""
        dispatch = self.dispatch
        label = f"dispatch {dispatch.label}, kernel {dispatch.kernel.name}"
        commands.kernel(self.kernel, dispatch.groups, dispatch.kernel.workgroup, label)


def _add(launches: Sequence[Launch], commands: Commands) -> None:
    for launch in launches:
        launch.add_to(commands)


class OpenCLRecording(BaseRecording[Outputs]):
    """A `Recording` on one in-order queue, which keeps dispatches in their order."""

    def __init__(
        self,
        context: Any,
        queue: Any,
        native: Native | None,
        memory: Memory,
        ios: Sequence[PlannedIO],
        inputs: Sequence[Staging],
        outputs: Sequence[Staging],
        launches: Sequence[Launch],
        on_close: Callable[[OpenCLRecording], None],
    ) -> None:
        super().__init__()
        self._context = context
        self._queue = queue
        self._native = native
        self._memory = memory
        self._staging = [*inputs, *outputs]
        self._outputs_staging = list(outputs)
        self._launches = list(launches)
        self._on_close = on_close
        self._inputs = tuple(s.array for s in inputs)
        self._profiling_queue: Any = None
        # Runs of one plan take about the same time, so the last one tells what to expect. A CPU's
        # threads and a blocked one wake each other; there, asking is quicker.
        self._is_gpu = bool(queue.device.type & cl.device_type.GPU)
        self._took = math.inf

        self._before = Commands(queue, native)
        for staging in self._staging:
            staging.before(self._before)
        self._sets = output_sets(
            context, queue, native, ios, inputs, outputs, partial(_add, self._launches),
            lends=not memory.guarded,
        )  # fmt: skip

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._launches)

    def close(self) -> None:
        """Release everything; twice is harmless. Arrays that someone holds stay valid."""
        super().close()
        self._on_close(self)

    # Inside

    def _finish(self) -> None:
        finish(self._queue, "running")

    def _wait_idle(self) -> None:
        for queue in (self._queue, self._profiling_queue):
            if queue is not None:
                finish(queue, "closing")

    def _run(self) -> None:
        if self._memory.guarded:
            self._run_guarded()
        else:
            start = time.perf_counter()
            self._outputs.for_run().commands.submit()
            finish(self._queue, "running", is_short=self._is_gpu and self._took < SHORT)
            self._took = time.perf_counter() - start

    def _release(self) -> None:
        self._before = Commands(self._queue, self._native)
        self._sets = None  # its commands hold kernels and buffers
        self._launches.clear()
        try:
            # A device that is lost cannot release what it held; that is no news here.
            finish(self._queue, "closing")
            with device_errors("closing"):
                for staging in self._staging:
                    staging.release()
                self._memory.release()
        except DeviceError:
            pass
        self._staging.clear()
        self._outputs_staging.clear()
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
            times = [
                DispatchTime(
                    launch.dispatch.label,
                    launch.dispatch.kernel.name,
                    (event.profile.end - event.profile.start) * 1e-9 if event else 0.0,
                )
                for launch, event in zip(self._launches, events, strict=True)
            ]
        outputs.download.submit()
        self._finish()
        return times

    def _timed(self, launch: Launch) -> Any:
        workgroup = launch.dispatch.kernel.workgroup
        size = tuple(g * w for g, w in zip(launch.dispatch.groups, workgroup, strict=True))
        if not all(size):
            return None
        return cl.enqueue_nd_range_kernel(self._profiling_queue, launch.kernel, size, workgroup)

    def _run_guarded(self) -> None:
        """Dispatch by dispatch, so that the one which writes outside a buffer can be named."""
        with device_errors("running"):
            self._memory.poison()
            for staging in self._outputs_staging:
                self._memory.poison_region(staging.region)
            self._before.submit()
            for launch in self._launches:
                single = Commands(self._queue, self._native)
                launch.add_to(single)
                single.submit()
                self._finish()
                for region in launch.regions:
                    self._check(region, launch)
            for region in self._memory.regions:
                self._check(region, None)
            for staging in self._staging:
                self._check(staging.region, None)
            self._outputs.for_run().download.submit()
            self._finish()

    def _check(self, region: Region, launch: Launch | None) -> None:
        damage = self._memory.damage(region)
        if damage:
            raise stray_write(damage, launch.dispatch if launch else None)
