"""Vulkan buffers that recordings can be bound to."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.heaps import PooledBuffer
from tflgpu.backend_kit.host_memory import usable_in_place
from tflgpu.backend_kit.pools import LEAST
from tflgpu.contract.buffers import Span
from tflgpu.lowering.reason import Unsupported

from tflgpu_vulkan.api import ffi
from tflgpu_vulkan.blocks import Block, Region
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.external import HostBlock, SharedBlock
from tflgpu_vulkan.heaps import VulkanHeaps


@attrs.frozen
class VulkanHandles:
    """A part of a ``VkBuffer``, for callers that use Vulkan on the same ``VkDevice``; the handles
    are those of the package ``vulkan``. One that is imported has the usages storage buffer,
    transfer source and transfer destination, and memory bound.

    Attributes:
        device: The ``VkDevice``.
        buffer: The ``VkBuffer``.
        offset: Where the part begins, in bytes; a multiple of the device's alignment.
        nbytes: How long it is.
    """

    device: Any
    buffer: Any
    offset: int
    nbytes: int


@attrs.frozen(eq=False)
class _Foreign:
    """A block of an imported buffer."""

    buffer: Any


class VulkanBuffer(PooledBuffer[Block]):
    """A `Buffer`: a region of a pool of its own, of an imported buffer, or of host memory."""

    _heaps: VulkanHeaps

    @property
    def span(self) -> Span:
        """A part of a ``VkBuffer``, or host memory."""
        if self.host is not None:
            return super().span
        region = self.region
        whole = int(ffi.cast("uintptr_t", region.block.buffer))
        return ("Vulkan", whole), region.offset, region.offset + self.nbytes

    def _export(self) -> object:
        region = self.region
        # What lies behind it, to a whole word, is its own too.
        _, nbytes = region.bound
        return VulkanHandles(self._heaps.context.handle, region.block.buffer, region.offset, nbytes)


class SharedVulkanBuffer(VulkanBuffer):
    """A `SharedBuffer`: all of a block that can be exported.

    Attributes:
        uuid: Vulkan's of the device.
        allocated: Bytes of the memory.
    """

    def __init__(
        self, lock: Any, token: object, region: Region, heaps: VulkanHeaps, block: SharedBlock
    ) -> None:
        super().__init__(lock, token, region, heaps, block, is_mapped=False)
        self._block = block
        self.uuid = heaps.context.details.uuid
        self.allocated = block.allocated

    def descriptor(self) -> int:
        """As `SharedBuffer.descriptor`.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the driver gives none.
        """
        with self._lock:
            self.check_open()
            return self._block.descriptor()


def shared(heaps: VulkanHeaps, nbytes: int) -> tuple[Region, SharedBlock] | Unsupported:
    """Memory that another API may import, all zeros.

    Raises:
        DeviceError: memory ran out.
    """
    context = heaps.context
    if not context.details.exports:
        return Unsupported(f"{context.info.name}: its driver lacks VK_KHR_external_memory_fd")
    block = SharedBlock(context, max(LEAST, -(-nbytes // LEAST) * LEAST))
    placed: Any = block
    region = Region("a shared buffer", nbytes, 0, 0, placed=placed)
    with releasing_on_error(block):
        heaps.upload([region], [np.zeros(nbytes, np.uint8)])
    return region, block


def imported(context: Context, source: object, *, in_place: bool) -> Region | Unsupported:
    """A part of a ``VkBuffer`` of the device; or, with ``in_place``, host memory.

    Raises:
        DeviceError: the driver refused.
    """
    if not isinstance(source, VulkanHandles):
        return _host(context, source, in_place=in_place)
    if ffi.cast("uintptr_t", source.device) != ffi.cast("uintptr_t", context.handle):
        return Unsupported(
            "the buffer is of another VkDevice; make it on the one of an exported buffer"
        )
    if source.offset % context.details.alignment:
        return Unsupported(
            f"the part begins at byte {source.offset}, no multiple of {context.details.alignment}"
        )
    if source.nbytes % 4 or source.nbytes < LEAST:
        return Unsupported(
            f"the part has {source.nbytes} bytes; a multiple of 4 from {LEAST} on is needed"
        )
    foreign: Any = _Foreign(source.buffer)
    return Region("an imported buffer", source.nbytes, 0, source.offset, placed=foreign)


def _host(context: Context, source: object, *, in_place: bool) -> Region | Unsupported:
    page, objection = context.details.host_page, ""
    if not in_place or not page:
        objection = "shares none with the host, or its driver lacks VK_EXT_external_memory_host"
    host = usable_in_place(source, objection, page=page, step=page)
    if isinstance(host, Unsupported):
        return host
    block: Any = HostBlock(context, host)
    return Region("imported host memory", host.nbytes, 0, 0, placed=block)
