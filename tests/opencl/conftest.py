"""An opened OpenCL device, with a compile cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_devices import devices, moving


@pytest.fixture
def open_device(require_backend: Callable[[str], Any], tmp_path: Path) -> Iterator[Any]:
    """``open_device(**arguments of OpenCLDevice)``; closed at the end of the test."""
    require_backend("opencl")
    with devices("opencl", "OpenCLDevice", tmp_path / "cache") as open_device:
        yield open_device


@pytest.fixture(params=["in place", "copied"])
def device(request: pytest.FixtureRequest, open_device: Callable[..., Any]) -> Any:
    """A device, in every way in which it moves data and enqueues."""
    return moving(open_device, request.param)
