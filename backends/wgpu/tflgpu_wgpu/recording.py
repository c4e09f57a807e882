"""A plan bound to a device, run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from tflgpu.backend_kit.host_memory import arrays_in_block, starts_in_block
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_recording import BasePlanRecording, Span
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.mapping import Mapping
from tflgpu_wgpu.memory import Memory, Region, padded
from tflgpu_wgpu.native import Commands, Copy, Launch, poll, wait_idle
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

    def release(self) -> None:
        """Drop the memory; it lives on in arrays that were lent."""
        super().release()
        self.mapping = None


class Outline:
    """What the commands of a run are made of, for any set of outputs.

    Attributes:
        launches: The dispatches, but for those of no workgroups.
        before, after: Copies to inputs, and from outputs: of the latter without their targets.
    """

    def __init__(self, device: Any, memory: Memory, plan: Plan, at_once: int) -> None:
        self._device, self._memory, self._at_once = device, memory, at_once
        self._ios = plan.outputs
        self.starts = starts_in_block(plan.outputs, padded)
        self.launches: list[Launch] = []
        self.before: list[Copy] = []
        self.after: list[tuple[Any, int, int]] = []

    def make(self) -> HostOutputs:
        """A set of outputs.

        Raises:
            DeviceError: memory ran out.
        """
        block, mapping = block_of(self._memory, "the outputs", self._ios, self.starts[-1])
        outputs = HostOutputs(arrays_in_block(block, self._ios, self.starts), mapping)
        self.remake(outputs)
        return outputs

    def remake(self, outputs: HostOutputs) -> None:
        """Have other commands for a set."""
        after, device = [], self._device
        if outputs.mapping is not None:
            to = outputs.mapping.buffer
            after = [Copy(source, 0, to, start, nbytes) for source, start, nbytes in self.after]
        outputs.commands = Commands(device, self.before, self.launches, after, self._at_once)
        outputs.download = Commands(device, [], [], after)


def block_of(
    memory: Memory, name: str, ios: Sequence[PlannedIO], nbytes: int, *, writes: bool = False
) -> tuple[Bytes, Mapping | None]:
    """Host memory for inputs or outputs, mapped where there is something to copy.

    Raises:
        DeviceError: memory ran out.
    """
    # Between bands each has a copy of its own.
    if memory.guarded or not any(io.nbytes for io in ios):
        return np.zeros(nbytes, np.uint8), None
    mapping = memory.mapped(name, nbytes, writes=writes)
    return mapping.memory, mapping


def turn(mappings: Sequence[Mapping], action: Callable[[], T]) -> T:
    """Do something while the device has its turn with some memory; the host asks for it back.

    Raises:
        wgpu.GPUError: wgpu refused a command.
    """
    for mapping in mappings:
        mapping.give()
    result = action()
    for mapping in mappings:
        mapping.take()
    return result


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
        block, self._input = block_of(memory, "the inputs", plan.inputs, starts[-1], writes=True)
        self._inputs = arrays_in_block(block, plan.inputs, starts)
        self._outline = outline = Outline(device, memory, plan, at_once)
        self._bind_all()
        first = outline.make()

        def fill(outputs: HostOutputs) -> None:
            with device_errors("reading outputs"):
                mappings = [outputs.mapping] if outputs.mapping else []
                turn(mappings, outputs.download.submit)
                for mapping in mappings:
                    mapping.finish()

        self._lends = first.mapping is not None
        lendable = range(len(plan.outputs)) if self._lends else ()
        self._sets = OutputSets(first, lendable, outline.make, fill)
        self._turns: list[Mapping] = []  # that the host asked for
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
        outline.before, outline.after = [], []
        host = self._input and self._input.buffer
        for i in self._own(InputRef) if host else ():
            region, start = memory.inputs[i], self._input_starts[i]
            if size := _words(region.nbytes):
                outline.before.append(Copy(host, start, region.buffer, 0, size))
        for i in self._own(OutputRef):
            region, start = memory.outputs[i], outline.starts[i]
            if size := _words(region.nbytes):
                outline.after.append((region.buffer, start, size))

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
        self._turn(outputs, outputs.commands.submit)

    def _turn(self, outputs: HostOutputs, action: Callable[[], T]) -> T:
        self._turns = [each for each in (self._input, outputs.mapping) if each is not None]
        with device_errors("running"):
            return turn(self._turns, action)

    def _is_over(self) -> bool:
        if not self._turns:
            return poll(self._device._internal)
        return all(mapping.is_over() for mapping in self._turns)

    def _end(self) -> None:
        for mapping in self._turns:
            mapping.finish()
        if not self._turns:
            wait_idle(self._device._internal)

    def _profile(self) -> Sequence[DispatchTime] | Unsupported:
        if "timestamp-query" not in self._device.features or self._memory.guarded:
            self._run()
            why = "between guard bands dispatches run one by one"
            if not self._memory.guarded:
                why = "the WebGPU adapter has no feature timestamp-query"
            return Unsupported(why)
        with device_errors("profiling"):
            if self._timers is None:
                self._timers = Timers(self._device)
        outputs, timers = self._outputs.for_run(), self._timers
        upload = Commands(self._device, self._outline.before, [], [])

        def run() -> list[Span]:
            upload.submit()
            spans = timers.run(self._launches)
            outputs.download.submit()
            return spans

        spans = self._turn(outputs, run)
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
        if self._unfinished:
            for mapping in self._turns:
                mapping.keep()
        try:
            # A device that is lost cannot release what it held; that is no news here.
            with device_errors("closing"):
                self._memory.release()
        except DeviceError:
            pass
        self._turns, self._input, self._sets = [], None, None
        del self._outline, self._memory, self._device

    def _dispatch_alone(self, index: int) -> None:
        with device_errors(f"running {self._planned[index].label}"):
            if all(self._launches[index].groups):
                Commands(self._device, [], [self._launches[index]], []).submit()


def _words(nbytes: int) -> int:
    """WebGPU copies words of 4 bytes."""
    return -(-nbytes // 4) * 4
