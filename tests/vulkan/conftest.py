"""Opened Vulkan devices, with a pipeline cache of the test's own, and SPIR-V's own tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def open_device(require_backend: Callable[[str], Any], tmp_path: Path) -> Iterator[Any]:
    """``open_device(**arguments of VulkanDevice)``; closed at the end of the test."""
    require_backend("vulkan")
    from tflgpu.cache.disk_cache import DiskCache
    from tflgpu_vulkan.device import VulkanDevice

    opened: list[VulkanDevice] = []

    def make(**arguments: Any) -> VulkanDevice:
        arguments.setdefault("cache", DiskCache(tmp_path / "cache"))
        opened.append(VulkanDevice(0, **arguments))
        return opened[-1]

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["in place", "copied"])
def device(request: pytest.FixtureRequest, open_device: Callable[..., Any]) -> Any:
    """A device, in both ways in which it moves data."""
    in_place = request.param == "in place"
    made = open_device(share_memory=in_place)
    if in_place and not made.in_place:
        pytest.skip("this device has memory of its own")
    return made


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
