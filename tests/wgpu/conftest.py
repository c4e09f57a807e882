"""Opened WebGPU devices, and the cases that other areas' tests share with these."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_devices import devices

# Kernels that several backends' tests run.
sys.path.append(str(Path(__file__).parents[1] / "language"))


@pytest.fixture
def open_device(require_backend: Callable[[str], Any]) -> Iterator[Any]:
    """``open_device(**arguments of WgpuDevice)``; closed at the end of the test."""
    require_backend("wgpu")
    with devices("wgpu", "WgpuDevice") as open_device:
        yield open_device


@pytest.fixture
def device(open_device: Callable[..., Any]) -> Any:
    """A device of the test's own."""
    return open_device()


@pytest.fixture(scope="session")
def runner(require_backend: Callable[[str], Any]) -> Any:
    """A device to run single kernels on."""
    require_backend("wgpu")
    from wgpu_runner import WgpuRunner

    return WgpuRunner()
