"""What of a device kernels may use: asked, turned on, and named by the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from tflgpu_vulkan.spirv.target import Target

ALL = Target(f16_arithmetic=True, matrix_tiles=True, subgroup_shuffle=32)
MEMBERS = {
    "f16_storage": {"storageBuffer16BitAccess"},
    "f16_arithmetic": {"shaderFloat16"},
    "int8_storage": {"storageBuffer8BitAccess"},
    "matrix_tiles": {"cooperativeMatrix", "vulkanMemoryModel"},
}


def turned_on(target: Target) -> list[str]:
    """The members that are set of all structs of the chain."""
    from tflgpu_vulkan.api import ffi, vk
    from tflgpu_vulkan.features import enabled

    structs = {
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES: (
            "ShaderFloat16Int8Features"
        ),
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES: "8BitStorageFeatures",
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES: "16BitStorageFeatures",
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR: (
            "CooperativeMatrixFeaturesKHR"
        ),
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES: (
            "VulkanMemoryModelFeatures"
        ),
    }
    found: list[str] = []
    first = chain = enabled(target)  # which keeps the others alive
    while chain != ffi.NULL:
        head = ffi.cast("VkBaseInStructure*", chain)
        struct = ffi.cast(f"VkPhysicalDevice{structs[head.sType]}*", chain)
        names = [name for name, _ in ffi.typeof(struct).item.fields][2:]
        found += [name for name in names if getattr(struct, name)]
        chain = head.pNext
    del first
    return found


@pytest.mark.parametrize("lacking", [None, *MEMBERS])
def test_a_device_is_opened_with_what_kernels_use(
    require_backend: Callable[[str], Any], lacking: str | None
) -> None:
    require_backend("vulkan")
    target = ALL if lacking is None else attrs.evolve(ALL, **{lacking: False})
    wanted = set().union(*(names for name, names in MEMBERS.items() if name != lacking))
    assert sorted(turned_on(target)) == sorted(wanted)


class Query:
    """A device that has some of the features."""

    def __init__(self, members: set[str], subgroup: int) -> None:
        self._members = members
        self._subgroup = subgroup

    def has(self, feature: Any) -> bool:
        return feature.member in self._members

    def properties(self, kind: str, extension: str = "") -> Any:
        from tflgpu_vulkan.api import make

        if "Subgroup" not in kind or "Control" in kind:
            return None
        return make(kind, subgroupSize=self._subgroup)


@pytest.mark.parametrize("lacking", [None, *MEMBERS])
def test_a_feature_takes_all_of_its_members(
    require_backend: Callable[[str], Any], lacking: str | None
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.features import _target

    every = set().union(*MEMBERS.values())
    for missing in sorted(MEMBERS.get(lacking or "", {""})):
        found = _target(Query(every - {missing}, 32), 0)  # type: ignore[arg-type]
        assert found.f16_storage == (lacking != "f16_storage")
        assert found.int8_storage == (lacking != "int8_storage")
        assert found.f16_arithmetic == (lacking not in ("f16_storage", "f16_arithmetic"))
        assert found.matrix_tiles == (lacking in (None, "int8_storage"))
    assert not _target(Query(every, 64), 0).matrix_tiles  # type: ignore[arg-type]
