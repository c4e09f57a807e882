"""Profiles of devices: what is known in public of each, and the least of its API for the rest.

A number stands here only where its source says it. What a device does better than it changes no
answer for the worse: what fits a smaller device fits a larger one.
"""

from __future__ import annotations

import attrs

from tflgpu.lowering.caps import DeviceCaps
from tflgpu.profiles.profile import Profile

_OPENCL = "OpenCL 3.0 API specification, table of device queries: minima of the full profile"
_VULKAN = "Vulkan 1.1 specification, Required Limits"
_WEBGPU = "WebGPU specification, Limits: the default tier (https://www.w3.org/TR/webgpu/#limits)"
_CUDA = (
    "CUDA C++ Programming Guide, Technical Specifications per Compute Capability "
    "(https://docs.nvidia.com/cuda/cuda-c-programming-guide/)"
)
_METAL = (
    "Apple, Metal Feature Set Tables "
    "(https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf)"
)
_QUALCOMM = (
    "clinfo on an Adreno: 32 KiB of local memory (https://github.com/BOINC/boinc/issues/3613)"
)
_VALHALL = "Arm, The Valhall Shader Core (document 102203): warps of 16"
_BIFROST = "Arm, The Bifrost Shader Core (document 102546): the width of warps"
_ARM_OPENCL = (
    "Arm, Mali GPU OpenCL Developer Guide (document 101574): work groups, half, local memory"
)
_V3DV = (
    "Mesa, src/broadcom/vulkan/v3dv_device.c, src/broadcom/vulkan/v3dv_limits.h and "
    "src/broadcom/common/v3d_limits.h"
)
_GEN9 = (
    "Intel, The Compute Architecture of Intel Processor Graphics Gen9: 64 KB of shared memory, half"
)
_RDNA = "AMD, RDNA 2 Instruction Set Architecture: packed 16-bit arithmetic, local data share"

_TEXTURES = (
    "TFLite's delegate stores tensors in textures here, which have a cache of their own; tflgpu uses "
    "buffers, so that speeds differ even where both delegate the same"
)

# By OpenCL's full profile: a kernel's arguments are 1024 bytes at least, and 8 each; a buffer may have
# a quarter of the memory, which of 512 MiB are 128. WebGPU, which all of these have too, asks for work
# groups of 256.
_OPENCL_CAPS = DeviceCaps(int8_storage=True, max_bindings=64, is_gpu=True, max_buffer_bytes=1 << 27)
_WEBGPU_CAPS = DeviceCaps(
    f16_storage=False,
    max_workgroup=256,
    max_workgroup_size=(256, 256, 64),
    shared_bytes=16384,
    max_buffer_bytes=1 << 27,
    max_bindings=8,
    is_gpu=True,
)
_VULKAN_CAPS = DeviceCaps(
    f16_storage=False,
    max_workgroup=128,
    max_workgroup_size=(128, 128, 64),
    shared_bytes=16384,
    max_buffer_bytes=1 << 27,
    max_bindings=4,
    is_gpu=True,
)


def _adreno(number: str) -> Profile:
    caps = attrs.evolve(
        _OPENCL_CAPS,
        f16_arithmetic=True,
        # Larger ones depend on the registers that a kernel takes, and no public table has them.
        max_workgroup=256,
        max_workgroup_size=(256, 256, 64),
        shared_bytes=32768,
        vendor="qualcomm",
    )
    return Profile(
        f"adreno-{number}", f"Qualcomm Adreno {number}", ("opencl", "vulkan"), caps,
        sources=(_QUALCOMM, _WEBGPU, _OPENCL), notes=(_TEXTURES,),
    )  # fmt: skip


def _mali(model: str, warp: int, source: str) -> Profile:
    caps = attrs.evolve(
        _OPENCL_CAPS,
        f16_arithmetic=True,
        max_workgroup=256,
        max_workgroup_size=(256, 256, 64),
        shared_bytes=32768,
        subgroup=warp,
        vendor="arm",
    )
    note = "Local memory is ordinary memory behind a cache: kernels that share through it gain less"
    return Profile(
        f"mali-{model}", f"Arm Mali-{model.upper()}", ("opencl", "vulkan"), caps,
        sources=(_ARM_OPENCL, source, _WEBGPU, _OPENCL), notes=(note, _TEXTURES),
    )  # fmt: skip


def _apple(chip: str) -> Profile:
    caps = attrs.evolve(
        _WEBGPU_CAPS,
        f16_storage=True,
        f16_arithmetic=True,
        max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 64),
        shared_bytes=32768,
        subgroup=32,
        vendor="apple",
    )
    return Profile(
        f"apple-{chip}", f"Apple {chip.upper()}", ("wgpu", "vulkan"), caps,
        sources=(_METAL, _WEBGPU), notes=("Through WebGPU on Metal, or Vulkan by MoltenVK",),
    )  # fmt: skip


DEVICES: tuple[Profile, ...] = (
    *(_adreno(number) for number in ("630", "640", "650", "660", "730", "740", "750")),
    _mali("g52", 8, _BIFROST),
    _mali("g72", 4, _BIFROST),
    _mali("g76", 8, _BIFROST),
    *(_mali(model, 16, _VALHALL) for model in ("g57", "g68", "g77", "g78", "g610", "g710", "g715")),
    *(_apple(chip) for chip in ("a12", "a14", "a15", "a16", "a17", "m1", "m2", "m3")),
    Profile(
        "powervr-ge8320",
        "Imagination PowerVR GE8320",
        ("vulkan",),
        _VULKAN_CAPS,
        sources=(_VULKAN,),
        notes=("Little is documented of it, so that it is judged by what every Vulkan device has",),
    ),
    Profile(
        "v3d",
        "Broadcom V3D of Raspberry Pi 4 and 5",
        ("vulkan",),
        attrs.evolve(
            _VULKAN_CAPS,
            max_workgroup=256,
            max_workgroup_size=(256, 256, 256),
            max_bindings=64,
            subgroup=16,
        ),
        sources=(_V3DV, _VULKAN),
        notes=("It has no 16-bit arithmetic",),
    ),
    Profile(
        "intel-uhd",
        "Intel UHD and Iris Xe graphics",
        ("opencl", "vulkan"),
        attrs.evolve(
            _OPENCL_CAPS,
            f16_arithmetic=True,
            max_workgroup=256,
            max_workgroup_size=(256, 256, 64),
            shared_bytes=65536,
            vendor="intel",
        ),
        sources=(_GEN9, _WEBGPU, _OPENCL),
        notes=("The compiler chooses subgroups of 8, 16 or 32 for each kernel",),
    ),
    Profile(
        "rtx-class",
        "NVIDIA GeForce RTX 20 and newer, and data-centre GPUs of their time",
        ("opencl", "vulkan"),
        DeviceCaps(
            f16_arithmetic=True,
            int8_storage=True,
            max_workgroup=1024,
            max_workgroup_size=(1024, 1024, 64),
            max_groups=(2**31 - 1, 65535, 65535),
            shared_bytes=49152,
            max_buffer_bytes=1 << 30,
            max_bindings=64,
            subgroup=32,
            is_gpu=True,
            vendor="nvidia",
        ),
        sources=(_CUDA, _OPENCL),
        notes=("Matrix units are used where the driver has them; no operator needs them",),
    ),
    Profile(
        "amd-rdna",
        "AMD Radeon RX 5000 and newer",
        ("opencl", "vulkan"),
        attrs.evolve(
            _OPENCL_CAPS,
            f16_arithmetic=True,
            max_workgroup=256,
            max_workgroup_size=(256, 256, 64),
            shared_bytes=32768,
            vendor="amd",
        ),
        sources=(_RDNA, _WEBGPU, _OPENCL),
        notes=("Subgroups of 32 or 64, as the driver chooses",),
    ),
    Profile(
        "webgpu-core",
        "any device with WebGPU",
        ("wgpu",),
        _WEBGPU_CAPS,
        sources=(_WEBGPU,),
        notes=("What every browser and wgpu give, without optional features",),
    ),
    Profile(
        "vulkan-least",
        "any device with Vulkan 1.1",
        ("vulkan",),
        _VULKAN_CAPS,
        sources=(_VULKAN,),
        notes=("The least that the specification asks for; hardly any device has so little",),
    ),
)
