"""An opened OpenCL device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import pyopencl as cl
from tflgpu.errors import CompileError, StateError
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.tree import Kernel
from tflgpu.runtime.check_plan import check_plan
from tflgpu.runtime.forks import Holder
from tflgpu.runtime.protocols import DeviceInfo, Plan, PlannedDispatch, PlannedIO
from tflgpu.runtime.subgroup_probe import probe_shuffle

from tflgpu_opencl.binary_cache import BinaryCache, default_folder
from tflgpu_opencl.devices import alignment_of, caps_of, device_at, shares_memory, widest_shuffle
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.failure import device_errors
from tflgpu_opencl.finish import finish
from tflgpu_opencl.generator import dialect_of
from tflgpu_opencl.half import computes_in_half
from tflgpu_opencl.matrix_probe import runs_matrix_tiles
from tflgpu_opencl.memory import Memory
from tflgpu_opencl.native import native
from tflgpu_opencl.program import Compiler, make_kernel
from tflgpu_opencl.recording import Launch, OpenCLRecording
from tflgpu_opencl.staging import Copied, Shared, Staging


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel) -> str:
        """The program text of one kernel."""
        ...


class OpenCLDevice(Holder):
    """A `Device` with one context; every recording has a queue of its own.

    Safe to use from several threads.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        dialect: Dialect | None = None,
        cache: BinaryCache | None = None,
        keep_binaries: bool | None = None,
        raw_calls: bool = True,
        share_memory: bool = True,
    ) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            dialect: Printer of kernels, None for the device's own.
            cache: Where binaries are kept, None for the user's cache folder.
            keep_binaries: Whether they are, None for where the driver does not do so itself.
            raw_calls: Enqueue by OpenCL's own functions where they are found, rather than by
                pyopencl's.
            share_memory: Use host memory in place where host and device share it.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        found = device_at(index)
        self._handle = found.handle
        self._info = found.info
        self._lock = threading.RLock()
        self._recordings: weakref.WeakSet[OpenCLRecording] = weakref.WeakSet()
        self.belongs_to_process()
        self._native = native() if raw_calls else None
        self.in_place = share_memory and self._native is not None and shares_memory(self._handle)
        with device_errors(f"opening {self._info.name}"):
            self._context: Any = cl.Context([self._handle])
            self._alignment = alignment_of(self._handle)
            self._compiler = Compiler(
                self._context, self._handle, cache or BinaryCache(default_folder()),
                keep=keep_binaries,
            )  # fmt: skip
            f16 = computes_in_half(self._context, self._handle, self._compiler)
            tiles = f16 and runs_matrix_tiles(self._context, self._handle, self._compiler)
            caps = caps_of(self._handle, f16_arithmetic=f16)
            self._caps = attrs.evolve(caps, matrix_tiles=tiles, matrix_splits=tiles)
        printer = OpenCLDialect(
            f16_arithmetic=f16, matrix_tiles=tiles, subgroup_shuffle=widest_shuffle(self._handle),
            shuffle_ptx=caps.vendor == "nvidia",
        )  # fmt: skip
        self._dialect: Dialect = dialect or printer
        self._closed = False
        if dialect is None:
            size = probe_shuffle(self, printer.subgroup_shuffle)
            self._caps = attrs.evolve(self._caps, subgroup_shuffle=size)
            self._dialect = dialect_of(self._caps)
            self._compiler.clear()  # what was printed by the other dialect

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
        """How many programs the driver had to compile so far, caches aside."""
        return self._compiler.compiled

    def source(self, kernel: Kernel) -> str:
        """The OpenCL C of a kernel."""
        return self._dialect.source(kernel)

    def load(self, plan: Plan, *, guard_bands: bool = False) -> OpenCLRecording:
        """Compile, allocate, upload and bind.

        Raises:
            StateError: the device is closed.
            CompileError: the driver refused a kernel; the message has its log and the source.
            DeviceError: out of memory, a plan that does not fit the device, or the device is
                gone.
        """
        with self._lock:
            self.check_inherited("this OpenCL device")
            if self._closed:
                raise StateError(f"the OpenCL device {self._info.name} is closed")
            check_plan(plan, self)
            kernels = {id(d.kernel): d.kernel for d in plan.dispatches}
            programs = self._compiler.programs(kernels.values(), self.source)
            with device_errors("making a queue"):
                queue = cl.CommandQueue(self._context)
            memory = Memory(
                self._context,
                queue,
                plan,
                alignment=self._alignment,
                limit=self._caps.max_buffer_bytes,
                guarded=guard_bands,
            )
            inputs = self._stage(queue, memory, plan.inputs, is_input=True)
            outputs = self._stage(queue, memory, plan.outputs, is_input=False)
            regions = ([s.region for s in inputs], [s.region for s in outputs])
            launches = []
            for dispatch in plan.dispatches:
                bound = memory.bind(dispatch, *regions)
                with device_errors(f"binding {dispatch.label}"):
                    kernel = self._kernel(programs[dispatch.kernel], dispatch)
                    for i, region in enumerate(bound):
                        kernel.set_arg(i, region.buffer)
                launches.append(Launch(dispatch, kernel, tuple(bound)))
            finish(queue, "uploading")
            recording = OpenCLRecording(
                self._context, queue, self._native, memory, plan.outputs, inputs, outputs, launches,
                self._recordings.discard,
            )  # fmt: skip
            self._recordings.add(recording)
            return recording

    def close(self) -> None:
        """Close what was loaded, and release the device; twice is harmless."""
        if self.inherited:
            return
        with self._lock:
            self._closed = True
            for recording in list(self._recordings):
                recording.close()
            self._compiler.clear()
            self._context = None

    def after_fork(self) -> None:
        """A child may not touch it."""
        super().after_fork()
        self._lock = threading.RLock()

    # Inside

    def _stage(
        self, queue: Any, memory: Memory, ios: Sequence[PlannedIO], *, is_input: bool
    ) -> list[Staging]:
        staged: list[Staging] = []
        for io in ios:
            if self.in_place and self._native and not memory.guarded:
                staged.append(Shared(queue, memory, self._native, io, is_input=is_input))
            else:
                staged.append(Copied(self._context, queue, memory, io, is_input=is_input))
        return staged

    def _kernel(self, program: Any, dispatch: PlannedDispatch) -> Any:
        kernel = make_kernel(program)
        x, y, z = dispatch.kernel.workgroup
        most = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._handle)
        if x * y * z > most:
            raise CompileError(
                f"{dispatch.label}: kernel {dispatch.kernel.name} has workgroups of {x * y * z}, "
                f"and the driver runs it with at most {most}"
            )
        return kernel
