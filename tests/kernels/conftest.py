"""Devices of every backend, and those that have matrix tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.contract.device import Device
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


def _opened(
    backend: str, require_backend: Callable[[str], Any], *, tiles: bool
) -> Iterator[Device]:
    require_backend(backend)
    interprets = backend == "cpu_ref"
    opened = registry().open_device(backend, int(interprets), DelegateOptions())
    assert isinstance(opened, Device)
    if tiles and not interprets and not opened.caps.matrix_tiles:
        name = opened.info.name
        opened.close()
        pytest.skip(f"{name} has no matrix tiles")
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["cpu_ref", "opencl", "vulkan", "wgpu"])
def any_device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Device]:
    """Each backend's, or the interpreter of kernels."""
    yield from _opened(request.param, require_backend, tiles=False)


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def matrix_device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Device]:
    """A GPU's."""
    yield from _opened(request.param, require_backend, tiles=True)


@pytest.fixture(scope="module", params=["cpu_ref", "opencl", "vulkan"])
def tile_device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Device]:
    """A GPU's, or the interpreter of kernels, which can do all that a device says to have."""
    yield from _opened(request.param, require_backend, tiles=True)
