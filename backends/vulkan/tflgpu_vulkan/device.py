"""An opened Vulkan device."""

from __future__ import annotations

import contextlib
import threading
import weakref

from tflgpu.errors import DeviceError, StateError
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.check import check
from tflgpu.kernel.tree import Kernel
from tflgpu.runtime.check_plan import check_plan
from tflgpu.runtime.disk_cache import DiskCache, cache_folder
from tflgpu.runtime.forks import Holder
from tflgpu.runtime.protocols import DeviceInfo, Plan
from tflgpu.runtime.subgroup_probe import probe_shuffle

from tflgpu_vulkan.context import Context
from tflgpu_vulkan.memory import PlanMemory
from tflgpu_vulkan.pipelines import Pipelines
from tflgpu_vulkan.recording import VulkanRecording
from tflgpu_vulkan.spirv.module import text_of


class VulkanDevice(Holder):
    """A `Device` with one queue, which its recordings share. Safe to use from several threads."""

    def __init__(
        self, index: int = 0, *, cache: DiskCache | None = None, share_memory: bool = True
    ) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            cache: Where compiled pipelines are kept, None for the user's cache folder.
            share_memory: Use host memory in place where host and device share it.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        self._context = Context(index)
        self._lock = threading.RLock()
        self._recordings: weakref.WeakSet[VulkanRecording] = weakref.WeakSet()
        self._closed = self._released = False
        self.belongs_to_process()
        self.in_place = share_memory and self._context.details.shares_memory
        self._pipelines = Pipelines(self._context, cache or DiskCache(cache_folder("vulkan")))
        size = probe_shuffle(self, self._context.details.target.subgroup_shuffle)
        self._context.details = self._context.details.with_shuffle(size)
        self._pipelines.made = 0

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""
        return self._context.info

    @property
    def caps(self) -> DeviceCaps:
        """Its limits and features."""
        return self._context.details.caps

    @property
    def alignment(self) -> int:
        """Bytes to which arena offsets must be aligned."""
        return self._context.details.alignment

    @property
    def compiled(self) -> int:
        """How many pipelines were made for plans so far."""
        return self._pipelines.made

    def source(self, kernel: Kernel) -> str:
        """The SPIR-V assembly of a kernel.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        return text_of(kernel, self._context.details.target)

    def load(self, plan: Plan, *, guard_bands: bool = False) -> VulkanRecording:
        """Compile, allocate, upload, bind and record.

        Raises:
            StateError: the device is closed.
            KernelError: a kernel is ill-formed.
            CompileError: the driver refused a kernel; the message has its assembly.
            DeviceError: out of memory, a plan that does not fit the device, or the device is
                gone.
        """
        with self._lock:
            self.check_inherited("this Vulkan device")
            if self._closed:
                raise StateError(f"the Vulkan device {self.info.name} is closed")
            check_plan(plan, self)
            for dispatch in plan.dispatches:
                # A name that is never defined would only be a KeyError in the printer.
                check(dispatch.kernel)
            memory = PlanMemory(self._context, plan, shared=self.in_place, guarded=guard_bands)
            try:
                made = self._pipelines.get((d.kernel for d in plan.dispatches), guard=memory.band)
                pipelines = [made[id(d.kernel)] for d in plan.dispatches]
            except BaseException:
                memory.release()
                raise
            recording = VulkanRecording(
                self._context, plan, memory, pipelines, self._recordings.discard
            )
            self._recordings.add(recording)
            self._context.instance.raise_problems("loading")
            return recording

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
            with contextlib.suppress(DeviceError):  # one that is lost does nothing any more
                self._context.wait_idle()
            self._pipelines.close()
            self._context.close()
            self._released = True

    def after_fork(self) -> None:
        """A child may not touch it."""
        super().after_fork()
        self._lock = threading.RLock()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
