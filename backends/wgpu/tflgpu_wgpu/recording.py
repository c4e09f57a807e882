"""A plan bound to a device, run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from tflgpu.backend_kit.host_memory import arrays_in_block, starts_in_block
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_recording import BasePlanRecording, Span
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.mapping import Mapping
from tflgpu_wgpu.memory import Memory, Region, padded
from tflgpu_wgpu.native import Commands, Copy, Launch, Upload, pointer, poll, wait_idle
from tflgpu_wgpu.pipelines import Pipeline
from tflgpu_wgpu.timers import Timers

T = TypeVar("T")


class HostOutputs(OutputSet):
    """Host memory for all outputs.

    Attributes:
        mapping: A buffer over it, None where nothing is copied to it.
        commands: A whole run that leaves its outputs here.
        download: The part of it after the kernels.
    """

    commands: Commands
    download: Commands

    def __init__(self, arrays: Sequence[Array], mapping: Mapping | None) -> None:
        super().__init__(arrays)
        self.mapping = mapping

    def turn(self, action: Callable[[], T]) -> T:
        """Do something while the device has its turn with the memory, which the host asks for
        afterwards.

        Raises:
            wgpu.GPUError: wgpu refused a command.
        """
        if self.mapping is not None:
            self.mapping.give()
        result = action()
        if self.mapping is not None:
            self.mapping.take()
        return result

    def release(self) -> None:
        """Drop the memory; it lives on in arrays that were lent."""
        super().release()
        self.mapping = None


class Outline:
    """What the commands of a run are made of, for any set of outputs.

    Attributes:
        launches: The dispatches, but for those of no workgroups.
        uploads: Writes to inputs.
        copies: Copies from outputs: the buffer, the byte of the set's memory, and how many.
    """

    def __init__(self, device: Any, memory: Memory, plan: Plan, at_once: int) -> None:
        self._device, self._memory, self._at_once = device, memory, at_once
        self._ios = plan.outputs
        self.starts = starts_in_block(plan.outputs, padded)
        self.launches: list[Launch] = []
        self.uploads: list[Upload] = []
        self.copies: list[tuple[Any, int, int]] = []

    def make(self) -> HostOutputs:
        """A set of outputs.

        Raises:
            DeviceError: memory ran out.
        """
        mapping = None
        # Between bands outputs are read one by one.
        if any(io.nbytes for io in self._ios) and not self._memory.guarded:
            mapping = self._memory.readable("the outputs", self.starts[-1])
        block = mapping.memory if mapping else np.zeros(self.starts[-1], np.uint8)
        outputs = HostOutputs(arrays_in_block(block, self._ios, self.starts), mapping)
        self.remake(outputs)
        return outputs

    def upload(self) -> Commands:
        """The part of a run before the kernels."""
        return Commands(self._device, self.uploads, [], [])

    def remake(self, outputs: HostOutputs) -> None:
        """Have other commands for a set."""
        copies, device = [], self._device
        if outputs.mapping is not None:
            to = outputs.mapping.buffer
            copies = [Copy(source, to, start, nbytes) for source, start, nbytes in self.copies]
        outputs.commands = Commands(device, self.uploads, self.launches, copies, self._at_once)
        outputs.download = Commands(device, [], [], copies)


class WgpuRecording(BasePlanRecording[HostOutputs, Region]):
    """A `Recording`: everything is bound once, and each run encodes some command buffers."""

    def __init__(
        self,
        device: Any,
        lock: threading.RLock,
        plan: Plan,
        memory: Memory,
        pipelines: Sequence[Pipeline],
        at_once: int,
    ) -> None:
        super().__init__(plan, memory, lock)
        self._device = device
        self._memory = memory
        self._pipelines = list(pipelines)
        self._input_starts = starts = starts_in_block(plan.inputs, padded)
        self._input_block: Bytes = np.zeros(starts[-1], np.uint8)
        self._inputs = arrays_in_block(self._input_block, plan.inputs, starts)
        self._outline = outline = Outline(device, memory, plan, at_once)
        self._bind_all()
        first = outline.make()

        def fill(outputs: HostOutputs) -> None:
            with device_errors("reading outputs"):
                outputs.turn(outputs.download.submit)
                if outputs.mapping is not None:
                    outputs.mapping.finish()

        self._lends = first.mapping is not None
        lendable = range(len(plan.outputs)) if self._lends else ()
        self._sets = OutputSets(first, lendable, outline.make, fill)
        self._mapping: Mapping | None = None  # of the last run
        self._timers: Timers | None = None

    # Inside

    def _bind_all(self) -> None:
        """Have what the commands of runs are made of, in the memory that regions say."""
        memory, outline = self._memory, self._outline
        self._launches = [
            self._launch(planned, pipeline, regions)
            for planned, pipeline, regions in zip(
                self._planned, self._pipelines, self._regions, strict=True
            )
        ]
        outline.launches = [launch for launch in self._launches if all(launch.groups)]
        outline.uploads, outline.copies = [], []
        host = self._input_block.ctypes.data
        for i in () if memory.guarded else self._own(InputRef):
            region, start = memory.inputs[i], self._input_starts[i]
            if size := _words(region.nbytes):
                outline.uploads.append(Upload(region.buffer, pointer(host + start), size))
        for i in self._own(OutputRef):
            region, start = memory.outputs[i], outline.starts[i]
            if size := _words(self._fetched[i]):
                outline.copies.append((region.buffer, start, size))

    def _rebind(self) -> None:
        with device_errors("binding buffers"):
            self._bind_all()
        self._outputs.change(self._own(OutputRef) if self._lends else (), self._outline.remake)

    def _launch(
        self, planned: PlannedDispatch, pipeline: Pipeline, regions: Sequence[Region]
    ) -> Launch:
        entries = [{"binding": i, "resource": r.binding} for i, r in enumerate(regions)]
        with device_errors(f"binding {planned.label}"):
            group: Any = self._device.create_bind_group(layout=pipeline.layout, entries=entries)
        return Launch(pipeline.handle, group, planned.groups)

    def _begin(self) -> None:
        outputs = self._outputs.for_run()
        self._mapping = outputs.mapping
        with device_errors("running"):
            outputs.turn(outputs.commands.submit)

    def _is_over(self) -> bool:
        mapping = self._mapping
        return poll(self._device._internal) if mapping is None else mapping.is_over()

    def _end(self) -> None:
        if self._mapping is None:
            wait_idle(self._device._internal)
        else:
            self._mapping.finish()

    def _profile(self) -> Sequence[DispatchTime] | Unsupported:
        if "timestamp-query" not in self._device.features or self._memory.guarded:
            self._run()
            why = "between guard bands dispatches run one by one"
            if not self._memory.guarded:
                why = "the WebGPU adapter has no feature timestamp-query"
            return Unsupported(why)
        with device_errors("profiling"):
            timers = self._timers = self._timers or Timers(self._device)
            outputs, upload = self._outputs.for_run(), self._outline.upload()
            self._mapping = outputs.mapping

            def run() -> list[Span]:
                upload.submit()
                spans = timers.run(self._launches)
                outputs.download.submit()
                return spans

            spans = outputs.turn(run)
            self._end()
        return self._times(spans)

    def _wait_idle(self) -> None:
        wait_idle(self._device._internal)

    def _is_idle(self) -> bool:
        return poll(self._device._internal)

    def _release(self) -> None:
        super()._release()
        self._launches.clear()
        self._pipelines.clear()
        self._timers = None
        if self._unfinished and self._mapping is not None:
            self._mapping.keep()
        try:
            # A device that is lost cannot release what it held; that is no news here.
            with device_errors("closing"):
                self._memory.release()
        except DeviceError:
            pass
        self._mapping = self._sets = None
        del self._outline, self._memory, self._device

    def _dispatch_alone(self, index: int) -> None:
        with device_errors(f"running {self._planned[index].label}"):
            if all(self._launches[index].groups):
                Commands(self._device, [], [self._launches[index]], []).submit()


def _words(nbytes: int) -> int:
    """WebGPU copies words of 4 bytes."""
    return -(-nbytes // 4) * 4
