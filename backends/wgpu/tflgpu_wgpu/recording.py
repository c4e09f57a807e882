"""A plan bound to a device, run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.lending import OutputSet, OutputSets
from tflgpu.runtime.protocols import DispatchTime, Plan, PlannedDispatch, PlannedIO
from tflgpu.runtime.recording import BaseRecording, stray_write

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.memory import Memory, Region, padded
from tflgpu_wgpu.native import Commands, Copy, Download, Launch, Upload, pointer, wait_idle
from tflgpu_wgpu.timers import Timers


class HostOutputs(OutputSet):
    """A block of host memory with all outputs in it.

    Attributes:
        block: All of it.
        starts: Where each output begins.
        address: The block's.
    """

    def __init__(self, ios: Sequence[PlannedIO]) -> None:
        self.block, arrays, self.starts = _host_arrays(ios)
        self.address = pointer(self.block.ctypes.data)
        super().__init__(arrays)


@attrs.frozen(eq=False)
class Bound:
    """A dispatch, ready to be encoded, and the regions that it touches."""

    dispatch: PlannedDispatch
    launch: Launch
    regions: tuple[Region, ...]


class WgpuRecording(BaseRecording[HostOutputs]):
    """A `Recording`: everything is bound once, and each run encodes one command buffer."""

    def __init__(
        self,
        device: Any,
        lock: threading.RLock,
        memory: Memory,
        plan: Plan,
        bound: Sequence[Bound],
        on_close: Callable[[WgpuRecording], None],
    ) -> None:
        super().__init__(lock)
        self._device = device
        self._memory = memory
        self._bound = list(bound)
        self._on_close = on_close
        input_host, self._inputs, input_starts = _host_arrays(plan.inputs)
        first = HostOutputs(plan.outputs)
        output_host, output_starts = first.block, first.starts
        uploads = [
            Upload(region.buffer, pointer(input_host.ctypes.data + start), size)
            for region, start in zip(memory.inputs, input_starts, strict=True)
            if (size := _words(region.nbytes)) and not region.band
        ]
        banded = [(region, input_host[start : start + _words(region.nbytes)])
                  for region, start in zip(memory.inputs, input_starts, strict=True)]  # fmt: skip
        self._banded_inputs = [(r, a) for r, a in banded if r.band and a.size]
        sizes = [_words(region.nbytes) for region in memory.outputs]
        total = output_host.nbytes if any(sizes) else 0
        staging = memory.buffer("the outputs", padded(total), "MAP_READ|COPY_DST")
        copies = [
            Copy(region.buffer, staging, start, size)
            for region, start, size in zip(memory.outputs, output_starts, sizes, strict=True)
            if size and not region.band
        ]
        self._banded_outputs = [
            (region, output_host[start : start + size])
            for region, start, size in zip(memory.outputs, output_starts, sizes, strict=True)
            if size and region.band
        ]
        launches = [b.launch for b in self._bound if all(b.launch.groups)]
        self._all = Commands(device, uploads, launches, copies)
        self._before = Commands(device, uploads, [], [])
        self._after = Commands(device, [], [], copies)
        self._download = download = Download(device, staging, total)
        # Between bands outputs are read one by one, into the first arrays.

        def fill(outputs: HostOutputs) -> None:
            with device_errors("reading outputs"):
                download.wait(outputs.address)

        lendable = range(len(plan.outputs)) if total and not memory.guarded else ()
        self._sets = OutputSets(first, lendable, partial(HostOutputs, plan.outputs), fill)
        self._timers: Timers | None = None

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._bound)

    def close(self) -> None:
        """Release everything; twice is harmless. Arrays that someone holds stay valid."""
        super().close()
        self._on_close(self)

    # Inside

    def _run(self) -> None:
        with device_errors("running"):
            outputs = self._outputs.for_run()
            if self._memory.guarded:
                self._run_guarded()
            else:
                self._all.submit()
                self._download.wait(outputs.address)

    def _profile(self) -> Sequence[DispatchTime]:
        if "timestamp-query" not in self._device.features or self._memory.guarded:
            self._run()
            return []
        with device_errors("profiling"):
            return self._run_timed()

    def _wait_idle(self) -> None:
        wait_idle(self._device._internal)

    def _release(self) -> None:
        self._bound.clear()
        self._banded_inputs, self._banded_outputs = [], []
        self._timers = None
        if self._unfinished:
            self._download.keep()
        try:
            # A device that is lost cannot release what it held; that is no news here.
            with device_errors("closing"):
                self._memory.release()
        except DeviceError:
            pass
        del self._all, self._before, self._after, self._download
        del self._memory, self._device

    def _run_timed(self) -> list[DispatchTime]:
        if self._timers is None:
            self._timers = Timers(self._device)
        address = self._outputs.for_run().address
        self._before.submit()
        seconds = self._timers.run([b.launch for b in self._bound])
        self._after.submit()
        self._download.wait(address)
        return [
            DispatchTime(b.dispatch.label, b.dispatch.kernel.name, time)
            for b, time in zip(self._bound, seconds, strict=True)
        ]

    def _run_guarded(self) -> None:
        """Dispatch by dispatch, so that the one which writes outside a buffer can be named."""
        self._memory.poison()
        queue = self._device.queue
        for region, host in self._banded_inputs:
            queue.write_buffer(region.buffer, region.offset, host)
        for bound in self._bound:
            if all(bound.launch.groups):
                Commands(self._device, [], [bound.launch], []).submit()
            for region in dict.fromkeys(bound.regions):
                self._check(region, bound)
        for region in self._memory.regions:
            self._check(region, None)
        for region, host in self._banded_outputs:
            found = queue.read_buffer(region.buffer, region.offset, host.nbytes)
            host[...] = np.frombuffer(found, np.uint8)

    def _check(self, region: Region, bound: Bound | None) -> None:
        damage = self._memory.damage(region)
        if damage:
            raise stray_write(damage, bound.dispatch if bound else None)


def _words(nbytes: int) -> int:
    """WebGPU copies words of 4 bytes."""
    return -(-nbytes // 4) * 4


def _host_arrays(
    ios: Sequence[PlannedIO],
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], tuple[Array, ...], list[int]]:
    """One block of host memory, the arrays in it, and where each starts."""
    starts, end = [], 0
    for io in ios:
        starts.append(end)
        end += padded(io.nbytes)
    block = np.zeros(end, np.uint8)
    arrays = tuple(
        block[start : start + io.nbytes].view(io.dtype.numpy).reshape(io.shape)
        for start, io in zip(starts, ios, strict=True)
    )
    return block, arrays, starts
