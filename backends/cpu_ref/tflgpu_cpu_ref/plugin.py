"""Hooks of the cpu_ref backend: the op references, and an interpreter of kernels, in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.language.generator import ShaderGenerator
from tflgpu.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from tflgpu.contract.device import Device, NodeDevice
    from tflgpu.language.caps import DeviceCaps
    from tflgpu.language.kernel import Kernel
    from tflgpu.options import DelegateOptions

NAME = "cpu_ref"
_DRIVER = f"numpy {np.__version__}"
REFERENCES = DeviceInfo(NAME, 0, "NumPy op references", driver=_DRIVER)
INTERPRETER = DeviceInfo(NAME, 1, "NumPy kernel interpreter", driver=_DRIVER)


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """A rank below zero: only used as the device when asked for by name."""
    return [BackendInfo(NAME, API_VERSION, rank=-100, cpu_rank=0)]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """NumPy is always there."""
    return Probe(True, devices=(REFERENCES, INTERPRETER)) if backend == NAME else None


@hookimpl
def tflgpu_open_device(
    backend: str, index: int, options: DelegateOptions
) -> Device | NodeDevice | None:
    """Open one of the two."""
    if backend != NAME:
        return None
    if index == REFERENCES.index:
        from tflgpu_cpu_ref.references import ReferenceDevice

        return ReferenceDevice()
    from tflgpu_cpu_ref.device import CpuRefDevice

    return CpuRefDevice(index)


@hookimpl
def tflgpu_register_generators() -> list[ShaderGenerator]:
    """One language: the kernel's own tree, which depends on no device."""
    return [ShaderGenerator("tree", _source)]


def _source(kernel: Kernel, caps: DeviceCaps) -> str:
    from tflgpu_cpu_ref.dump import dump

    return dump(kernel)
