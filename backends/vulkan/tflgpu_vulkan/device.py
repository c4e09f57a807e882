"""An opened Vulkan device."""

from __future__ import annotations

import contextlib
from typing import Any

import attrs
from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.heaps import HeapKind
from tflgpu.backend_kit.kernel_device import KernelDevice
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.cache.disk_cache import DiskCache, cache_folder
from tflgpu.compiler.plan import Plan
from tflgpu.errors import DeviceError
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.reason import Unsupported

from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.buffers import SharedVulkanBuffer, VulkanBuffer, imported, shared
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.external import HostBlock
from tflgpu_vulkan.heaps import VulkanHeaps
from tflgpu_vulkan.pipelines import Pipelines
from tflgpu_vulkan.recording import VulkanRecording


class VulkanDevice(KernelDevice[PooledMemory[Block]]):
    """A `Device`. Its recordings share one queue, or take several in turn (`context.QUEUES`)."""

    kind = "Vulkan"
    _kernels: Pipelines

    def __init__(
        self,
        index: int = 0,
        *,
        cache: DiskCache | None = None,
        cache_root: str | None = None,
        share_memory: bool = True,
    ) -> None:
        """Open device ``index`` of the list that the probe gives.

        Args:
            index: Position in the list.
            cache: Where compiled pipelines are kept, None for ``cache_root``.
            cache_root: A folder for the folder of pipelines, None for the user's cache folder.
            share_memory: Use host memory in place where host and device share it.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        super().__init__()
        self._context = Context(index)
        details = self._context.details
        self.info, self.caps, self.alignment = self._context.info, details.caps, details.alignment
        self.in_place = share_memory and details.shares_memory
        self._heaps = VulkanHeaps(self._context)
        self._disk = cache or DiskCache(cache_folder("vulkan", cache_root))
        self._kernels = Pipelines(self._context, self._disk)
        self._probe_shuffle(details.target.subgroup_shuffle)

    @property
    def uuid(self) -> bytes:
        """Which device it is, to other APIs too (``VkPhysicalDeviceIDProperties.deviceUUID``)."""
        return self._context.details.uuid

    def source(self, kernel: Kernel) -> str:
        """The SPIR-V assembly of a kernel.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        return self._kernels.text(kernel)

    def code_of(self, kernel: Kernel) -> bytes:
        """The SPIR-V of a kernel, for files of compiled models."""
        return self._kernels.code(kernel, 0)

    def use_code(self, kernel: Kernel, code: bytes) -> None:
        """Use SPIR-V from a file instead of printing the kernel."""
        self._kernels.use(kernel, 0, code)

    def begin(self, kernel: Kernel) -> None:
        """Begin to compile a kernel, on a GPU: a device that is a processor has no time to spare.

        Raises:
            StateError: the device is closed.
            KernelError: the kernel needs what the device lacks; so `load` says.
        """
        self._check_open()
        if self.caps.is_gpu:
            self._kernels.begin(kernel, 0)

    # Inside

    def _fingerprint(self) -> str:
        return self._context.details.fingerprint

    def _memory(
        self, plan: Plan, *, guarded: bool = False, ledger: Ledger | None = None
    ) -> PooledMemory[Block]:
        shared = self.in_place
        return PooledMemory(self._heaps, plan, shared=shared, guarded=guarded, ledger=ledger)

    def _record(self, plan: Plan, memory: PooledMemory[Block]) -> VulkanRecording:
        made = self._kernels.get((d.kernel, memory.band) for d in plan.dispatches)
        pipelines = [made[d.kernel, memory.band] for d in plan.dispatches]
        recording = VulkanRecording(self._context, plan, memory, pipelines)
        self._context.instance.raise_problems("loading")
        return recording

    def _assume(self, **caps: Any) -> None:
        super()._assume(**caps)
        details, size = self._context.details, self.caps.subgroup_shuffle
        target = attrs.evolve(details.target, subgroup_shuffle=size)
        self._context.details = attrs.evolve(details, caps=self.caps, target=target)

    def _allocate_buffer(self, nbytes: int) -> VulkanBuffer:
        kind = HeapKind.HOST if self.in_place else HeapKind.DEVICE
        region, pool = self._heaps.zeros("a buffer", nbytes, kind)
        return self._buffer(region, pool, is_mapped=self.in_place)

    def _allocate_shared(self, nbytes: int) -> VulkanBuffer | Unsupported:
        made = shared(self._heaps, nbytes)
        if isinstance(made, Unsupported):
            return made
        return SharedVulkanBuffer(self._lock, self._token, made[0], self._heaps, made[1])

    def _import_buffer(self, source: object) -> VulkanBuffer | Unsupported:
        region = imported(self._context, source, in_place=self.in_place)
        if isinstance(region, Unsupported):
            return region
        owner = region.block if isinstance(region.block, HostBlock) else None
        made = self._buffer(region, owner, is_mapped=False)
        made.host = None if owner is None else owner.bytes
        return made

    def _buffer(self, region: Region, owner: Any, *, is_mapped: bool) -> VulkanBuffer:
        of_device = self._lock, self._token
        return VulkanBuffer(*of_device, region, self._heaps, owner, is_mapped=is_mapped)

    def _release(self) -> None:
        with contextlib.suppress(DeviceError):  # one that is lost does nothing any more
            self._context.wait_idle()
        self._kernels.close()
        self._heaps.release()
        self._context.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
