"""Opened Vulkan devices, with a pipeline cache of the test's own, and SPIR-V's own tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_devices import devices, moving


@pytest.fixture
def open_device(require_backend: Callable[[str], Any], tmp_path: Path) -> Iterator[Any]:
    """``open_device(**arguments of VulkanDevice)``; closed at the end of the test."""
    require_backend("vulkan")
    with devices("vulkan", "VulkanDevice", tmp_path / "cache") as open_device:
        yield open_device


@pytest.fixture(params=["in place", "copied"])
def device(request: pytest.FixtureRequest, open_device: Callable[..., Any]) -> Any:
    """A device, in both ways in which it moves data."""
    return moving(open_device, request.param)


@pytest.fixture(scope="session")
def runner(require_backend: Callable[[str], Any]) -> Iterator[Any]:
    """A device to run single kernels on."""
    require_backend("vulkan")
    from vulkan_runner import VulkanRunner

    made = VulkanRunner()
    yield made
    made.close()


@pytest.fixture(scope="session")
def spirv_tool() -> Callable[[str], str]:
    """``spirv_tool(name)`` finds a program of SPIRV-Tools; skips where it is absent, and fails
    where TFLGPU_REQUIRE_BACKENDS lists vulkan."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is not None:
            return path
        reason = f"no {name}; apt install spirv-tools"
        if "vulkan" in os.environ.get("TFLGPU_REQUIRE_BACKENDS", "").replace(",", " ").split():
            pytest.fail(f"{reason}; TFLGPU_REQUIRE_BACKENDS asks for it")
        pytest.skip(reason)

    return find
