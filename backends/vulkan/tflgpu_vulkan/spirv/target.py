"""What modules may use of a device."""

from __future__ import annotations

import attrs
from tflgpu.lowering.caps import DeviceCaps


@attrs.frozen
class Target:
    """Features that change the printed code; their Vulkan names are beside them.

    Attributes:
        f16_storage: storageBuffer16BitAccess: 16-bit elements in buffers.
        f16_arithmetic: shaderFloat16: 16-bit floats as values.
        int8_storage: storageBuffer8BitAccess: 8-bit elements in buffers.
        matrix_tiles: cooperativeMatrix and vulkanMemoryModel: 16 x 16 products.
        subgroup_shuffle: VK_SUBGROUP_FEATURE_SHUFFLE_BIT: the largest group of neighbours that
            shuffle values, 0 where none do.
        keeps_special: Float widths with shaderSignedZeroInfNanPreserve; without it a driver may
            compute as if there were no infinities.
        rounds_to_even: Widths with shaderRoundingModeRTE.
        keeps_denormals: Widths with shaderDenormPreserve.
    """

    f16_storage: bool = True
    f16_arithmetic: bool = False
    int8_storage: bool = True
    matrix_tiles: bool = False
    subgroup_shuffle: int = 0
    keeps_special: frozenset[int] = frozenset()
    rounds_to_even: frozenset[int] = frozenset()
    keeps_denormals: frozenset[int] = frozenset()

    @classmethod
    def of(cls, caps: DeviceCaps) -> Target:
        """As far as capabilities tell. A device's own says also how its driver treats special
        numbers."""
        return cls(
            f16_storage=caps.f16_storage,
            f16_arithmetic=caps.f16_arithmetic,
            int8_storage=caps.int8_storage,
            matrix_tiles=caps.matrix_tiles,
            subgroup_shuffle=caps.subgroup_shuffle,
        )
