"""Hooks of the OpenCL backend. Imports without pyopencl."""

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

NAME = "opencl"


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """One backend, for every OpenCL platform that is installed."""
    return [
        BackendInfo(
            NAME,
            API_VERSION,
            requires=("pyopencl",),
            extra="opencl",
            rank=20,
            system_hint="apt install pocl-opencl-icd or your GPU vendor's driver",
        )
    ]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """List the devices of all platforms, GPUs first."""
    if backend != NAME:
        return None
    try:
        from tflgpu_opencl.installed import lacking

        if reason := lacking():
            return Probe(False, reason)
        from tflgpu_opencl.devices import find_devices
    except ImportError as error:
        # It is installed (the registry looked), but what it is linked to may not be.
        return Probe(False, f"pyopencl cannot be imported: {error}")
    return find_devices().probe()


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Device | None:
    """Open one of the devices that the probe lists."""
    if backend != NAME:
        return None
    from tflgpu_opencl.device import OpenCLDevice

    return OpenCLDevice(index, cache_root=options.cache_root)


@hookimpl
def tflgpu_register_generators() -> list[ShaderGenerator]:
    """One language: OpenCL C."""
    return [ShaderGenerator("opencl-c", _source)]


@hookimpl
def tflgpu_register_memory() -> list[MemoryKind]:
    """Two classes of pyopencl's."""
    return [MemoryKind("a pyopencl Buffer or Array", _memory)]


def _memory(source: object) -> ForeignMemory | None:
    if "pyopencl" not in sys.modules:
        return None
    from tflgpu_opencl.foreign_memory import memory_of

    return memory_of(source)


def _source(kernel: Kernel, caps: DeviceCaps) -> str:
    from tflgpu_opencl.dialect import OpenCLDialect

    return OpenCLDialect.of(caps).source(kernel)
