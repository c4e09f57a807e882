"""An opened WebGPU device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs
from tflgpu.errors import StateError
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.tree import Kernel
from tflgpu.runtime.check_plan import check_plan
from tflgpu.runtime.forks import Holder
from tflgpu.runtime.protocols import DeviceInfo, Plan, PlannedDispatch
from tflgpu.runtime.subgroup_probe import probe_shuffle

from tflgpu_wgpu.adapters import adapter_at, caps_of, open_adapter, widest_shuffle
from tflgpu_wgpu.dialect import WgslDialect
from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.memory import Memory, Region
from tflgpu_wgpu.native import Launch
from tflgpu_wgpu.pipelines import Compiler, Job, Pipeline
from tflgpu_wgpu.recording import Bound, WgpuRecording

#: Least alignment of arena offsets: a vector of four f32, and whole cache lines.
_LEAST_ALIGNMENT = 64


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel, *, writable: bool = False) -> str:
        """The module of one kernel; with ``writable`` every buffer is bound read_write."""
        ...


class WgpuDevice(Holder):
    """A `Device` with one queue, which keeps runs in their order.

    Safe to use from several threads; their runs take turns.
    """

    def __init__(self, index: int = 0, *, dialect: Dialect | None = None) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            dialect: Printer of kernels, None for the device's own.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        found = adapter_at(index)
        self._info = found.info
        self._lock = threading.RLock()
        self._recordings: weakref.WeakSet[WgpuRecording] = weakref.WeakSet()
        self._released = False
        self.belongs_to_process()
        with device_errors(f"opening {self._info.name}"):
            self._device = open_adapter(found.handle)
        features, limits = set(self._device.features), self._device.limits
        self._caps = caps_of(found.handle.info, features, limits)
        offsets = int(limits["min-storage-buffer-offset-alignment"])
        self._alignment = max(_LEAST_ALIGNMENT, offsets)
        self._compiler = Compiler(self._device)
        self._given_dialect = dialect
        self._f16 = self._caps.f16_arithmetic
        self._closed = False
        # What the probe may try first, and what it found from then on.
        self._shuffle = widest_shuffle(found.handle.info, features) if dialect is None else 0
        self._shuffle = probe_shuffle(self, self._shuffle)
        self._caps = attrs.evolve(self._caps, subgroup_shuffle=self._shuffle)
        self._compiler.compiled = 0

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""
        return self._info

    @property
    def caps(self) -> DeviceCaps:
        """Its limits and features."""
        return self._caps

    @property
    def alignment(self) -> int:
        """Bytes to which arena offsets must be aligned."""
        return self._alignment

    @property
    def compiled(self) -> int:
        """How many pipelines were made for plans so far."""
        return self._compiler.compiled

    def source(self, kernel: Kernel) -> str:
        """The WGSL of a kernel."""
        return self._dialect(0).source(kernel)

    def load(self, plan: Plan, *, guard_bands: bool = False) -> WgpuRecording:
        """Compile, allocate, upload and bind.

        Raises:
            StateError: the device is closed.
            CompileError: wgpu refused a kernel; the message has its log and the source.
            DeviceError: out of memory, a plan that does not fit the device, or the device is
                gone.
        """
        with self._lock:
            self.check_inherited("this WebGPU device")
            if self._closed:
                raise StateError(f"the WebGPU device {self._info.name} is closed")
            check_plan(plan, self)
            memory = Memory(
                self._device, plan, limit=self._caps.max_buffer_bytes, guarded=guard_bands
            )
            try:
                return self._load(plan, memory)
            except BaseException:
                memory.release()
                raise

    def close(self) -> None:
        """Close what was loaded, and release the device; twice is harmless."""
        if self.inherited:
            return
        with self._lock:
            if self._released:
                return
            self._closed = True
            for recording in list(self._recordings):
                recording.close()
            self._compiler.clear()
            # Now, and not when the last handle is collected: it holds a thread and memory.
            self._device.destroy()
            self._released = True
            del self._device

    def after_fork(self) -> None:
        """A child may not touch it."""
        super().after_fork()
        self._lock = threading.RLock()

    # Inside

    def _dialect(self, band: int) -> Dialect:
        return self._given_dialect or WgslDialect(self._f16, self._shuffle, band)

    def _load(self, plan: Plan, memory: Memory) -> WgpuRecording:
        regions = [memory.bind(dispatch) for dispatch in plan.dispatches]
        dialect = self._dialect(memory.band)
        ways = [
            (dispatch.kernel, _reads_what_it_writes(dispatch, bound))
            for dispatch, bound in zip(plan.dispatches, regions, strict=True)
        ]
        printed: dict[tuple[Kernel, bool], Job] = {}

        def jobs() -> Iterator[Job]:
            for kernel, writable in dict.fromkeys(ways):
                source = dialect.source(kernel, writable=writable)
                job = Job.of(kernel, source, writable=writable, checked=memory.guarded)
                printed[kernel, writable] = job
                yield job

        pipelines = self._compiler.compile(jobs())
        recording = WgpuRecording(
            self._device, self._lock, memory, plan,
            [
                Bound(dispatch, self._launch(dispatch, pipelines[printed[way]], bound), tuple(bound))
                for dispatch, way, bound in zip(plan.dispatches, ways, regions, strict=True)
            ],
            self._recordings.discard,
        )  # fmt: skip
        self._recordings.add(recording)
        return recording

    def _launch(
        self, dispatch: PlannedDispatch, pipeline: Pipeline, regions: Sequence[Region]
    ) -> Launch:
        entries = [{"binding": i, "resource": r.binding} for i, r in enumerate(regions)]
        with device_errors(f"binding {dispatch.label}"):
            group: Any = self._device.create_bind_group(layout=pipeline.layout, entries=entries)
        return Launch(pipeline.handle, group, dispatch.groups)


def _reads_what_it_writes(dispatch: PlannedDispatch, regions: Sequence[Region]) -> bool:
    """Whether a dispatch writes a buffer of which it also binds a part for reading only."""
    pairs = list(zip(dispatch.kernel.buffers, regions, strict=True))
    written = {id(region.buffer) for buffer, region in pairs if buffer.access != "read"}
    return any(buffer.access == "read" and id(r.buffer) in written for buffer, r in pairs)
