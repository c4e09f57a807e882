"""Hooks of the WebGPU backend. Imports without wgpu."""

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

NAME = "wgpu"


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """One backend, for every native API that wgpu speaks."""
    return [
        BackendInfo(
            NAME,
            API_VERSION,
            requires=("wgpu",),
            extra="wgpu",
            rank=10,
            system_hint="a Vulkan, Metal or D3D12 driver: e.g. apt install mesa-vulkan-drivers",
        )
    ]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """List the adapters, GPUs first."""
    if backend != NAME:
        return None
    try:
        from tflgpu_wgpu.installed import lacking

        if reason := lacking():
            return Probe(False, reason)
        from tflgpu_wgpu.adapters import find_adapters
    except (ImportError, OSError, RuntimeError) as error:
        # wgpu is installed (the registry looked), but its native library may not load here.
        return Probe(False, f"wgpu cannot be imported: {error}")
    return find_adapters().probe()


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Device | None:
    """Open one of the devices that the probe lists."""
    if backend != NAME:
        return None
    from tflgpu_wgpu.device import WgpuDevice

    return WgpuDevice(index)


@hookimpl
def tflgpu_register_generators() -> list[ShaderGenerator]:
    """One language: WGSL."""
    return [ShaderGenerator("wgsl", _source)]


@hookimpl
def tflgpu_register_memory() -> list[MemoryKind]:
    """A ``GPUBuffer`` of the package wgpu."""
    return [MemoryKind("a wgpu GPUBuffer", _memory)]


def _memory(source: object) -> ForeignMemory | None:
    wgpu = sys.modules.get("wgpu")
    if wgpu is None or not isinstance(source, wgpu.GPUBuffer):
        return None
    return ForeignMemory(source, "a wgpu GPUBuffer")


def _source(kernel: Kernel, caps: DeviceCaps) -> str:
    from tflgpu_wgpu.dialect import WgslDialect

    return WgslDialect.of(caps).source(kernel)
