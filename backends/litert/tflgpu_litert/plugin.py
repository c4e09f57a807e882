"""Hooks of the litert backend. Imports nothing that may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tflgpu.contract.device import API_VERSION, Allowances, BackendInfo, DeviceInfo, Probe
from tflgpu.errors import DeviceError
from tflgpu.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from tflgpu.contract.device import NodeDevice
    from tflgpu.options import DelegateOptions

NAME = "litert"


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """First among those that run what a GPU does not; as the device only when asked for."""
    return [
        BackendInfo(
            NAME,
            API_VERSION,
            requires=("ai_edge_litert",),
            extra="litert",
            rank=-50,
            cpu_rank=10,
        )
    ]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """One device, the CPU."""
    return Probe(True, devices=(info(),)) if backend == NAME else None


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> NodeDevice | None:
    """LiteRT is imported here and not before."""
    if backend != NAME:
        return None
    if index != 0:
        raise DeviceError(f"there is no device {index}, only 0 = {info().name}")
    from tflgpu_litert.device import LiteRTDevice

    return LiteRTDevice(info(), options.num_threads, options.op_resolver)


@hookimpl
def tflgpu_conformance_allowances(backend: str) -> Allowances | None:
    """What LiteRT makes of NaN and infinities is its own business."""
    if backend != NAME:
        return None
    return Allowances(expectations=Path(__file__).with_name("expectations.txt"))


def info() -> DeviceInfo:
    """The CPU, with LiteRT's version as its driver."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than all else here

    try:
        driver = f"ai-edge-litert {version('ai-edge-litert')}"
    except PackageNotFoundError:
        driver = "ai_edge_litert"
    return DeviceInfo(NAME, 0, "LiteRT CPU kernels", driver=driver)
