"""Hooks of the Vulkan backend. Imports without the vulkan package, and without its library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tflgpu.contract.buffers import ForeignMemory, MemoryKind
from tflgpu.contract.device import API_VERSION, BackendInfo, Probe
from tflgpu.language.generator import ShaderGenerator
from tflgpu.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from tflgpu.contract.device import Device
    from tflgpu.language.caps import DeviceCaps
    from tflgpu.language.kernel import Kernel
    from tflgpu.options import DelegateOptions

NAME = "vulkan"


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """One backend, for every Vulkan driver that is installed."""
    return [
        BackendInfo(
            NAME,
            API_VERSION,
            requires=("vulkan",),
            extra="vulkan",
            rank=30,
            system_hint=(
                "the Vulkan loader and a driver: apt install libvulkan1 mesa-vulkan-drivers, or "
                "your GPU vendor's driver"
            ),
        )
    ]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """List the devices of all drivers, GPUs first."""
    if backend != NAME:
        return None
    try:
        from tflgpu_vulkan.devices import probe
    except (ImportError, OSError) as error:
        # The package is installed (the registry looked); it loads the library when imported.
        return Probe(False, f"the Vulkan loader cannot be loaded: {error}")
    return probe()


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Device | None:
    """Open one of the devices that the probe lists."""
    if backend != NAME:
        return None
    from tflgpu_vulkan.device import VulkanDevice

    return VulkanDevice(index, cache_root=options.cache_root)


@hookimpl
def tflgpu_register_generators() -> list[ShaderGenerator]:
    """One language: SPIR-V, as assembly."""
    return [ShaderGenerator("spirv", _source)]


@hookimpl
def tflgpu_register_memory() -> list[MemoryKind]:
    """`tflgpu_vulkan.buffers.VulkanHandles`."""
    return [MemoryKind("handles of a Vulkan buffer", _memory)]


def _memory(source: object) -> ForeignMemory | None:
    buffers = sys.modules.get("tflgpu_vulkan.buffers")
    if buffers is None or not isinstance(source, buffers.VulkanHandles):
        return None
    return ForeignMemory(source, "a tflgpu_vulkan VulkanHandles")


def _source(kernel: Kernel, caps: DeviceCaps) -> str:
    from tflgpu_vulkan.spirv.module import text_of
    from tflgpu_vulkan.spirv.target import Target

    return text_of(kernel, Target.of(caps))
