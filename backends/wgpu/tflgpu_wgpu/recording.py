"""A plan bound to a device, run again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from tflgpu.backend_kit.host_memory import arrays_in_block
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_recording import BasePlanRecording
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.lowering.reason import Unsupported

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.memory import Memory, Region, padded
from tflgpu_wgpu.native import Commands, Copy, Download, Launch, Upload, is_idle, pointer, wait_idle
from tflgpu_wgpu.pipelines import Pipeline
from tflgpu_wgpu.timers import Timers


class HostOutputs(OutputSet):
    """A block of host memory with all outputs in it.

    Attributes:
        block: All of it.
        starts: Where each output begins.
        address: The block's.
    """

    def __init__(self, ios: Sequence[PlannedIO]) -> None:
        self.block, arrays, self.starts = arrays_in_block(ios, padded)
        self.address = pointer(self.block.ctypes.data)
        super().__init__(arrays)


class WgpuRecording(BasePlanRecording[HostOutputs, Region]):
    """A `Recording`: everything is bound once, and each run encodes one command buffer."""

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
        self._at_once = at_once
        self._device = device
        self._memory = memory
        self._pipelines = list(pipelines)
        self._input_host, self._inputs, self._input_starts = arrays_in_block(plan.inputs, padded)
        first = HostOutputs(plan.outputs)
        self._output_starts = first.starts
        total = first.block.nbytes if any(io.nbytes for io in plan.outputs) else 0
        self._result = memory.readable("the outputs", padded(total))
        self._download_all = download = Download(device, self._result, total)
        self._bind_all()

        def fill(outputs: HostOutputs) -> None:
            with device_errors("reading outputs"):
                download.wait(outputs.address)

        # Between bands outputs are read one by one, into the first arrays.
        self._lends = bool(total) and not memory.guarded
        lendable = range(len(plan.outputs)) if self._lends else ()
        self._sets = OutputSets(first, lendable, partial(HostOutputs, plan.outputs), fill)
        self._timers: Timers | None = None

    # Inside

    def _bind_all(self) -> None:
        """Make the commands of runs in the memory that regions say."""
        device, memory = self._device, self._memory
        self._launches = [
            self._launch(planned, pipeline, regions)
            for planned, pipeline, regions in zip(
                self._planned, self._pipelines, self._regions, strict=True
            )
        ]
        launches = [launch for launch in self._launches if all(launch.groups)]
        host, uploads, copies = self._input_host.ctypes.data, [], []
        if not memory.guarded:
            for i in self._own(InputRef):
                buffer, size = memory.inputs[i].buffer, _words(memory.inputs[i].nbytes)
                uploads.append(Upload(buffer, pointer(host + self._input_starts[i]), size))
            for i in self._own(OutputRef):
                buffer, size = memory.outputs[i].buffer, _words(memory.outputs[i].nbytes)
                copies.append(Copy(buffer, self._result, self._output_starts[i], size))
        uploads, copies = [u for u in uploads if u.nbytes], [c for c in copies if c.nbytes]
        self._all = Commands(device, uploads, launches, copies, self._at_once)
        self._before = Commands(device, uploads, [], [])
        self._after = Commands(device, [], [], copies)

    def _rebind(self) -> None:
        with device_errors("binding buffers"):
            self._bind_all()
        # All outputs of a set lie in one block, which is filled as a whole.
        own, outputs = self._own(OutputRef), self._edges[OutputRef]
        lends = self._lends and len(own) == len(outputs)
        spans = [(self._output_starts[i], outputs[i].nbytes) for i in own]
        self._download_all.spans = None if len(own) == len(outputs) else spans
        self._outputs.change(own if lends else (), lambda _: None)

    def _launch(
        self, planned: PlannedDispatch, pipeline: Pipeline, regions: Sequence[Region]
    ) -> Launch:
        entries = [{"binding": i, "resource": r.binding} for i, r in enumerate(regions)]
        with device_errors(f"binding {planned.label}"):
            group: Any = self._device.create_bind_group(layout=pipeline.layout, entries=entries)
        return Launch(pipeline.handle, group, planned.groups)

    def _begin(self) -> None:
        with device_errors("running"):
            self._outputs.for_run()
            self._all.submit()
            self._download_all.begin()

    def _is_over(self) -> bool:
        return self._download_all.is_over()

    def _end(self) -> None:
        self._download_all.end(self._outputs.current.address)

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
            address = self._outputs.for_run().address
            self._before.submit()
            spans = self._timers.run(self._launches)
            self._after.submit()
            self._download_all.wait(address)
        return self._times(spans)

    def _wait_idle(self) -> None:
        wait_idle(self._device._internal)

    def _is_idle(self) -> bool:
        return is_idle(self._device._internal)

    def _release(self) -> None:
        super()._release()
        self._launches.clear()
        self._pipelines.clear()
        self._timers = None
        if self._unfinished:
            self._download_all.keep()
        try:
            # A device that is lost cannot release what it held; that is no news here.
            with device_errors("closing"):
                self._memory.release()
        except DeviceError:
            pass
        del self._all, self._before, self._after, self._download_all
        del self._memory, self._device, self._result

    def _dispatch_alone(self, index: int) -> None:
        with device_errors(f"running {self._planned[index].label}"):
            if all(self._launches[index].groups):
                Commands(self._device, [], [self._launches[index]], []).submit()


def _words(nbytes: int) -> int:
    """WebGPU copies words of 4 bytes."""
    return -(-nbytes // 4) * 4
