"""Whether a Vulkan device has cooperative matrices of the size that kernels use."""

from __future__ import annotations

from typing import Any

from tflgpu.language.matrix import SUBGROUP, TILE

from tflgpu_vulkan.api import NULL, ffi, lib, make, vk

EXTENSION = "VK_KHR_cooperative_matrix"


def has_matrix_tiles(instance: Any, device: Any, subgroup: int) -> bool:
    """16 x 16 x 16 products of f16 with f32 sums, by subgroups of 32, under the Vulkan memory
    model. The device has `EXTENSION` and Vulkan 1.2.

    Args:
        instance: The VkInstance.
        device: The VkPhysicalDevice.
        subgroup: Invocations of the device's subgroups.
    """
    if subgroup != SUBGROUP:
        return False
    matrix = make("VkPhysicalDeviceCooperativeMatrixFeaturesKHR")
    memory = make("VkPhysicalDeviceVulkanMemoryModelFeatures", pNext=matrix)
    lib.vkGetPhysicalDeviceFeatures2(device, make("VkPhysicalDeviceFeatures2", pNext=memory))
    if not (matrix.cooperativeMatrix and memory.vulkanMemoryModel):
        return False
    half, full = vk.VK_COMPONENT_TYPE_FLOAT16_KHR, vk.VK_COMPONENT_TYPE_FLOAT32_KHR
    return any(
        (kind.MSize, kind.NSize, kind.KSize) == (TILE, TILE, TILE)
        and (kind.AType, kind.BType, kind.CType, kind.ResultType) == (half, half, full, full)
        and kind.scope == vk.VK_SCOPE_SUBGROUP_KHR
        for kind in _kinds(instance, device)
    )


def enabled_features(chain: Any) -> Any:
    """The features that modules with matrices need, before those of ``chain``."""
    matrix = make("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", cooperativeMatrix=1, pNext=chain)
    return make("VkPhysicalDeviceVulkanMemoryModelFeatures", vulkanMemoryModel=1, pNext=matrix)


def _kinds(instance: Any, device: Any) -> list[Any]:
    """Every kind of product that the device has."""
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    address = lib.vkGetInstanceProcAddr(instance, name.encode())
    if address == NULL:
        return []  # a loader older than the driver
    function = ffi.cast(f"PFN_{name}", address)
    count = ffi.new("uint32_t*")
    if function(device, count, NULL) < 0 or not count[0]:
        return []
    found = ffi.new("VkCooperativeMatrixPropertiesKHR[]", count[0])
    for kind in found:
        kind.sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
    if function(device, count, found) < 0:
        return []
    # Copies: what the array holds is gone with it.
    return [ffi.new("VkCooperativeMatrixPropertiesKHR*", found[i]) for i in range(count[0])]
