"""Hooks of the backend "minimal_kernels". Imports nothing that may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflgpu.sdk.plugin import API_VERSION, BackendInfo, DelegateOptions, DeviceInfo, Probe, hookimpl

if TYPE_CHECKING:
    from tflgpu.sdk.backend import Device

TFLGPU_SDK = ">=1.0,<2"
NAME = "minimal_kernels"
INFO = DeviceInfo(NAME, 0, "NumPy interpreter")


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """A rank below zero: only used when asked for."""
    return [BackendInfo(NAME, API_VERSION, rank=-1)]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """What is there, or ``Probe(False, "why not")``. Opens nothing."""
    return Probe(True, devices=(INFO,)) if backend == NAME else None


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Device | None:
    """Import what is heavy only here."""
    if backend != NAME:
        return None
    from tflgpu_minimal_kernels.device import KernelDevice

    return KernelDevice(index)
