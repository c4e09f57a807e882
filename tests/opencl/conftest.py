"""An opened OpenCL device, with a compile cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def open_device(require_backend: Callable[[str], Any], tmp_path: Path) -> Iterator[Any]:
    """``open_device(**arguments of OpenCLDevice)``; closed at the end of the test."""
    require_backend("opencl")
    from tflgpu.cache.disk_cache import DiskCache
    from tflgpu_opencl.device import OpenCLDevice

    opened: list[OpenCLDevice] = []

    def make(**arguments: Any) -> OpenCLDevice:
        arguments.setdefault("cache", DiskCache(tmp_path / "cache"))
        opened.append(OpenCLDevice(0, **arguments))
        return opened[-1]

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["in place", "copied"])
def device(request: pytest.FixtureRequest, open_device: Callable[..., Any]) -> Any:
    """A device, in every way in which it moves data and enqueues."""
    in_place = request.param == "in place"
    made = open_device(share_memory=in_place)
    if in_place and not made.in_place:
        pytest.skip("this device has memory of its own")
    return made
