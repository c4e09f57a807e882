"""The commands that make dispatches, copies and the host wait for each other."""

from __future__ import annotations

from typing import Any

from tflgpu_vulkan.api import NULL, array, lib, make, vk


def _barrier(source: tuple[int, int], target: tuple[int, int]) -> Any:
    """The arguments of vkCmdPipelineBarrier after the command buffer, from (stage, access)
    pairs."""
    memory = array(
        "VkMemoryBarrier", [make("VkMemoryBarrier", srcAccessMask=source[1],
                                 dstAccessMask=target[1])]
    )  # fmt: skip
    return source[0], target[0], 0, 1, memory, 0, NULL, 0, NULL


_COPY_READ = (vk.VK_PIPELINE_STAGE_TRANSFER_BIT, vk.VK_ACCESS_TRANSFER_READ_BIT)
_COPY_WRITE = (vk.VK_PIPELINE_STAGE_TRANSFER_BIT, vk.VK_ACCESS_TRANSFER_WRITE_BIT)
_COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
_WRITE = (_COMPUTE, vk.VK_ACCESS_SHADER_WRITE_BIT)
_USE = (_COMPUTE, vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT)
_HOST_READ = (vk.VK_PIPELINE_STAGE_HOST_BIT, vk.VK_ACCESS_HOST_READ_BIT)

_ALL = (_COMPUTE | vk.VK_PIPELINE_STAGE_TRANSFER_BIT,
        vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT)  # fmt: skip

_DISPATCHES = _barrier(_WRITE, _USE)
_UPLOAD = _barrier(_COPY_WRITE, _USE)
_DOWNLOAD = _barrier(_WRITE, _COPY_READ)
_COPIED = _barrier(_COPY_WRITE, _HOST_READ)
_WRITTEN = _barrier(_WRITE, _HOST_READ)
_HANDOVER = _barrier(_ALL, _ALL)


def handover_barrier(buffer: Any) -> None:
    """Between submissions that use the same memory; a barrier reaches past its command buffer."""
    lib.vkCmdPipelineBarrier(buffer, *_HANDOVER)


def dispatch_barrier(buffer: Any) -> None:
    """Between dispatches."""
    lib.vkCmdPipelineBarrier(buffer, *_DISPATCHES)


def upload_barrier(buffer: Any) -> None:
    """Between copies to the device and dispatches."""
    lib.vkCmdPipelineBarrier(buffer, *_UPLOAD)


def download_barrier(buffer: Any) -> None:
    """Between dispatches and copies to the host."""
    lib.vkCmdPipelineBarrier(buffer, *_DOWNLOAD)


def copied_barrier(buffer: Any) -> None:
    """Between copies and what the host reads."""
    lib.vkCmdPipelineBarrier(buffer, *_COPIED)


def written_barrier(buffer: Any) -> None:
    """Between dispatches and what the host reads."""
    lib.vkCmdPipelineBarrier(buffer, *_WRITTEN)
