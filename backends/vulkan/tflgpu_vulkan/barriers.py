"""The commands that make dispatches, copies and the host wait for each other."""

from __future__ import annotations

from typing import Any

from tflgpu.backend_kit.run_commands import Between

from tflgpu_vulkan.api import NULL, array, make, vk

_COMPUTE, _TRANSFER = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT
# (stage, access) pairs.
_COPY_READ = (_TRANSFER, vk.VK_ACCESS_TRANSFER_READ_BIT)
_COPY_WRITE = (_TRANSFER, vk.VK_ACCESS_TRANSFER_WRITE_BIT)
_WRITE = (_COMPUTE, vk.VK_ACCESS_SHADER_WRITE_BIT)
_USE = (_COMPUTE, vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT)
_HOST_READ = (vk.VK_PIPELINE_STAGE_HOST_BIT, vk.VK_ACCESS_HOST_READ_BIT)
_ALL = (_COMPUTE | _TRANSFER, vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT)
#: What comes before each, and what waits for it.
_ENDS = {
    Between.SUBMISSIONS: (_ALL, _ALL),
    Between.DISPATCHES: (_WRITE, _USE),
    Between.UPLOADS_AND_DISPATCHES: (_COPY_WRITE, _USE),
    Between.DISPATCHES_AND_DOWNLOADS: (_WRITE, _COPY_READ),
    Between.DOWNLOADS_AND_HOST: (_COPY_WRITE, _HOST_READ),
    Between.DISPATCHES_AND_HOST: (_WRITE, _HOST_READ),
}


def _arguments(source: tuple[int, int], target: tuple[int, int]) -> tuple[Any, ...]:
    masks = make("VkMemoryBarrier", srcAccessMask=source[1], dstAccessMask=target[1])
    return source[0], target[0], 0, 1, array("VkMemoryBarrier", [masks]), 0, NULL, 0, NULL


#: Those of vkCmdPipelineBarrier after the command buffer.
ARGUMENTS = {between: _arguments(*ends) for between, ends in _ENDS.items()}
