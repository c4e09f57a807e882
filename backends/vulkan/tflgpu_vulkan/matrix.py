"""Whether a Vulkan device has products of cooperative matrices of the size that kernels use."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tflgpu.errors import DeviceError
from tflgpu.language.types import TILE

from tflgpu_vulkan.api import listed, vk
from tflgpu_vulkan.instance import function_of


def has_matrix_products(instance: Any, device: Any) -> bool:
    """16 x 16 x 16 products of f16 with f32 sums, by subgroups.

    Args:
        instance: The VkInstance.
        device: The VkPhysicalDevice, which has cooperative matrices.
    """
    function = function_of(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    if function is None:
        return False
    half, full = vk.VK_COMPONENT_TYPE_FLOAT16_KHR, vk.VK_COMPONENT_TYPE_FLOAT32_KHR
    with suppress(DeviceError):
        kinds = listed(function, "VkCooperativeMatrixPropertiesKHR", device)
        return any(
            (kind.MSize, kind.NSize, kind.KSize) == (TILE, TILE, TILE)
            and (kind.AType, kind.BType, kind.CType, kind.ResultType) == (half, half, full, full)
            and kind.scope == vk.VK_SCOPE_SUBGROUP_KHR
            for kind in kinds
        )
    return False
