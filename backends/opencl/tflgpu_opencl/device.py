"""An opened OpenCL device."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.kernel_device import KernelDevice
from tflgpu.cache.disk_cache import DiskCache, cache_folder
from tflgpu.compiler.plan import Plan, PlannedDispatch
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.reason import Unsupported

from tflgpu_opencl import devices
from tflgpu_opencl.buffers import OpenCLBuffer, allocated, imported
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.finish import finish
from tflgpu_opencl.memory import Memory
from tflgpu_opencl.program import Compiler, Dialect, Entry
from tflgpu_opencl.recording import OpenCLRecording


class OpenCLDevice(KernelDevice[Memory]):
    """A `Device` with one context; every recording has a queue of its own."""

    kind = "OpenCL"
    _kernels: Compiler

    def __init__(
        self,
        index: int = 0,
        *,
        dialect: Dialect | None = None,
        cache: DiskCache | None = None,
        cache_root: str | None = None,
        keep_binaries: bool | None = None,
        share_memory: bool = True,
    ) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            dialect: Printer of kernels, None for the device's own.
            cache: Where binaries are kept, None for ``cache_root``.
            cache_root: A folder for the folder of binaries, None for the user's cache folder.
            keep_binaries: Whether they are, None for where the driver does not do so itself.
            share_memory: Use host memory in place where host and device share it.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        found = devices.device_at(index)
        super().__init__()
        self._handle = found.handle
        self.info = found.info
        self._queue: Any = None
        self.in_place = share_memory and devices.shares_memory(self._handle)
        with device_errors(f"opening {self.info.name}"):
            self._context: Any = cl.Context([self._handle])
            self.alignment = devices.alignment_of(self._handle)
            self._disk = cache or DiskCache(cache_folder("opencl", cache_root))
            self._kernels = Compiler(self._context, self._handle, self._disk, keep=keep_binaries)
            self.caps = devices.caps_of(
                self._handle, f16_arithmetic=devices.lists_f16(self._handle)
            )
        self._dialect: Dialect = OpenCLDialect.of(self.caps)
        if self.caps.vendor == "nvidia":
            self._try_what_nvidia_does_not_list()
        is_first = self.compiled > 0  # what was tried
        self._dialect = dialect or self._dialect
        if dialect is None:
            self._probe_shuffle(devices.widest_shuffle(self._handle))
        if is_first:  # nothing is kept: be ready when a model comes
            self._kernels.start_workers()

    def source(self, kernel: Kernel) -> str:
        """The OpenCL C of a kernel."""
        return self._dialect.source(kernel)

    def code_of(self, kernel: Kernel) -> bytes:
        """The OpenCL C text of a kernel, for files of compiled models."""
        return self._kernels.code(kernel, self._dialect).encode()

    def use_code(self, kernel: Kernel, code: bytes) -> None:
        """Use OpenCL C text from a file instead of printing the kernel."""
        self._kernels.use(kernel, self._dialect, code.decode())

    def begin(self, kernel: Kernel) -> None:
        """Begin to compile a kernel, where processes of their own compile.

        Raises:
            StateError: the device is closed.
            KernelError: the kernel needs what the device lacks; so `load` says.
        """
        self._check_open()
        self._kernels.begin(kernel, self._dialect)

    # Inside

    def _fingerprint(self) -> str:
        return devices.fingerprint(self._handle)

    def _assume(self, **caps: Any) -> None:
        super()._assume(**caps)
        self._dialect = OpenCLDialect.of(self.caps)

    def _try_what_nvidia_does_not_list(self) -> None:
        """NVIDIA's driver does not list cl_khr_fp16 and computes with `half` all the same, and its
        compiler alone knows PTX. Other drivers are believed: some of their compilers crash rather
        than refuse."""

        def half() -> bool:
            # Not at the top: these make kernels and interpret them, and no other driver is asked.
            from tflgpu.backend_kit.kernel_probe import computes_in_half

            self._assume(f16_arithmetic=True)
            return computes_in_half(self)

        def tiles() -> bool:
            from tflgpu.backend_kit.kernel_probe import runs_matrix_tiles

            self._assume(matrix_tiles=True)
            return runs_matrix_tiles(self)

        if not self.caps.f16_arithmetic:
            self._assume(f16_arithmetic=bool(self._find("half", half)))
        if self.caps.f16_arithmetic:
            self._assume(matrix_tiles=bool(self._find("matrix tiles", tiles)))

    def _memory(self, plan: Plan, *, guarded: bool = False, ledger: Ledger | None = None) -> Memory:
        return Memory(
            self._context,
            plan,
            alignment=self.alignment,
            limit=self.caps.max_buffer_bytes,
            guarded=guarded,
            in_place=self.in_place,
            ledger=ledger,
        )

    def _record(self, plan: Plan, memory: Memory) -> OpenCLRecording:
        dialect = self._dialect
        programs = self._kernels.get((d.kernel, dialect) for d in plan.dispatches)
        with device_errors("making kernels"):
            launched = [self._kernel(programs[d.kernel, dialect], d) for d in plan.dispatches]
        recording = OpenCLRecording(self._context, plan, memory, launched)
        finish(memory.queue, "uploading")
        return recording

    def _buffer_queue(self) -> Any:
        """For copies to and from buffers; made when there is the first."""
        if self._queue is None:
            with device_errors("making a queue"):
                self._queue = cl.CommandQueue(self._context)
        return self._queue

    def _allocate_buffer(self, nbytes: int) -> OpenCLBuffer:
        queue = self._buffer_queue()
        region = allocated(self._context, queue, nbytes)
        return OpenCLBuffer(self._lock, self._token, nbytes, region, queue)

    def _import_buffer(self, source: object) -> OpenCLBuffer | Unsupported:
        queue = self._buffer_queue()
        region = imported(self._context, queue, source, in_place=self.in_place)
        if isinstance(region, Unsupported):
            return region
        return OpenCLBuffer(self._lock, self._token, region.nbytes, region, queue)

    def _release(self) -> None:
        self._kernels.end_workers()
        self._kernels.clear()
        self._context = self._queue = self._kernels.context = None

    def _kernel(self, entry: Entry, dispatch: PlannedDispatch) -> Any:
        kernel = entry.make_kernel()
        x, y, z = dispatch.kernel.workgroup
        most = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._handle)
        if x * y * z > most:
            raise CompileError(
                f"{dispatch.label}: kernel {dispatch.kernel.name} has workgroups of {x * y * z}, "
                f"and the driver runs it with at most {most}"
            )
        return kernel
