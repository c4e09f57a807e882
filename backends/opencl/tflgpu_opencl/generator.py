"""OpenCL C for a device, as far as its capabilities tell; that is all that the text depends on."""

from __future__ import annotations

from tflgpu.lowering.caps import DeviceCaps

from tflgpu_opencl.dialect import OpenCLDialect


def dialect_of(caps: DeviceCaps) -> OpenCLDialect:
    """How kernels are written for a device."""
    return OpenCLDialect(
        f16_arithmetic=caps.f16_arithmetic,
        matrix_tiles=caps.matrix_tiles,
        subgroup_shuffle=caps.subgroup_shuffle,
        shuffle_ptx=caps.vendor == "nvidia",
    )
