"""The hooks of the backend. Imports without any driver, so that `tflgpu devices` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tflgpu.sdk.plugin import (
    API_VERSION,
    Allowances,
    BackendInfo,
    DelegateOptions,
    DeviceInfo,
    Probe,
    hookimpl,
)

if TYPE_CHECKING:
    from tflgpu.sdk.backend import Device

TFLGPU_SDK = ">=1.0,<2"
NAME = "example"
DEVICE = DeviceInfo(NAME, 0, "example interpreter", vendor="example", driver="1.0")


@hookimpl
def tflgpu_register_backends() -> list[BackendInfo]:
    """One backend. A rank below zero: used only when somebody asks for it by name."""
    return [BackendInfo(NAME, API_VERSION, rank=-50)]


@hookimpl
def tflgpu_probe(backend: str) -> Probe | None:
    """A real backend would ask its driver for devices here, and say why there are none."""
    return Probe(True, devices=(DEVICE,)) if backend == NAME else None


@hookimpl
def tflgpu_open_device(backend: str, index: int, options: DelegateOptions) -> Device | None:
    """Only now is the driver imported."""
    if backend != NAME:
        return None
    from tflgpu_example_backend.device import ExampleDevice

    return ExampleDevice(index)


@hookimpl
def tflgpu_conformance_allowances(backend: str) -> Allowances | None:
    """Where the known failures are listed, for the conformance suite."""
    if backend != NAME:
        return None
    return Allowances(expectations=Path(__file__).parent / "expectations.txt")
