"""An opened WebGPU device."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.kernel_device import KernelDevice
from tflgpu.compiler.plan import Plan, PlannedDispatch
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.tuning import tuning_of

from tflgpu_wgpu.adapters import caps_of, find_adapters, open_adapter, widest_shuffle
from tflgpu_wgpu.buffers import WgpuBuffer, allocated, imported
from tflgpu_wgpu.dialect import WgslDialect
from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.mapping import has_arrays
from tflgpu_wgpu.memory import Memory, Region
from tflgpu_wgpu.pipelines import Compiler, Dialect, Job, Way
from tflgpu_wgpu.recording import WgpuRecording

#: Least alignment of arena offsets: a vector of four f32, and whole cache lines.
_LEAST_ALIGNMENT = 64


class WgpuDevice(KernelDevice[Memory]):
    """A `Device` with one queue, which keeps runs in their order. Those of several threads take
    turns."""

    kind = "WebGPU"
    _kernels: Compiler

    def __init__(self, index: int = 0, *, dialect: Dialect | None = None) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            dialect: Printer of kernels, None for the device's own.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        found = find_adapters().at(index)
        super().__init__()
        self.info = found.info
        with device_errors(f"opening {self.info.name}"):
            self._device = open_adapter(found.handle)
        features, limits = set(self._device.features), self._device.limits
        self.caps = caps_of(found.handle.info, features, limits)
        offsets = int(limits["min-storage-buffer-offset-alignment"])
        self.alignment = max(_LEAST_ALIGNMENT, offsets)
        self._kernels = Compiler(self._device)
        self._given_dialect = dialect
        # What the probe may try first; a given dialect shuffles nothing.
        widest = widest_shuffle(found.handle.info, features) if dialect is None else 0
        self._probe_shuffle(widest)

    def source(self, kernel: Kernel) -> str:
        """The WGSL of a kernel."""
        return self._dialect(0).source(kernel)

    def code_of(self, kernel: Kernel) -> bytes:
        """The WGSL of a kernel, for files of compiled models."""
        return self._kernels.code(kernel, Way(self._dialect(0))).source.encode()

    def use_code(self, kernel: Kernel, code: bytes) -> None:
        """Use WGSL text from a file instead of printing the kernel."""
        way = Way(self._dialect(0))
        self._kernels.use(kernel, way, Job.of(kernel, way, code.decode()))

    # Inside

    def _memory(self, plan: Plan, *, guarded: bool = False, ledger: Ledger | None = None) -> Memory:
        limit = self.caps.max_buffer_bytes
        return Memory(self._device, plan, limit=limit, guarded=guarded, ledger=ledger)

    def _allocate_buffer(self, nbytes: int) -> WgpuBuffer:
        region = allocated(self._device, nbytes)
        return WgpuBuffer(self._lock, self._token, region, self._device, owned=True)

    def _import_buffer(self, source: object) -> WgpuBuffer | Unsupported:
        region = imported(self._device, source)
        if isinstance(region, Unsupported):
            return region
        return WgpuBuffer(self._lock, self._token, region, self._device, owned=False)

    def _release(self) -> None:
        self._kernels.clear()
        # Now, and not when the last handle is collected: it holds a thread and memory.
        if not has_arrays(self._device):
            self._device.destroy()
        del self._device

    def _dialect(self, band: int) -> Dialect:
        return self._given_dialect or attrs.evolve(WgslDialect.of(self.caps), band=band)

    def _record(self, plan: Plan, memory: Memory) -> WgpuRecording:
        regions = memory.bind(plan.dispatches)
        dialect = self._dialect(memory.band)
        jobs = [
            (d.kernel, Way(dialect, _reads_what_it_writes(d, bound), memory.guarded))
            for d, bound in zip(plan.dispatches, regions, strict=True)
        ]
        made = self._kernels.get(jobs)
        pipelines = [made[job] for job in jobs]
        at_once = tuning_of(self.caps).dispatches_at_once
        return WgpuRecording(self._device, self._lock, plan, memory, pipelines, at_once)


def _reads_what_it_writes(dispatch: PlannedDispatch, regions: Sequence[Region]) -> bool:
    """Whether a dispatch writes a buffer of which it also binds a part for reading only."""
    pairs = list(zip(dispatch.kernel.buffers, regions, strict=True))
    written = {id(region.buffer) for buffer, region in pairs if buffer.access != "read"}
    return any(buffer.access == "read" and id(r.buffer) in written for buffer, r in pairs)
