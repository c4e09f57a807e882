"""Where the pieces of a model run: nowhere but on the CPU, by NumPy as a device, on a real driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tflgpu import GpuDelegate


@pytest.fixture(scope="session", params=["none", "cpu_ref", "opencl"])
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], object]
) -> Iterator[list[GpuDelegate]]:
    if request.param == "none":
        yield []
        return
    require_backend(request.param)
    with GpuDelegate(backend=request.param) as made:
        yield [made]


@pytest.fixture(scope="session")
def by_numpy(require_backend: Callable[[str], object]) -> Iterator[list[GpuDelegate]]:
    require_backend("cpu_ref")
    with GpuDelegate(backend="cpu_ref") as made:
        yield [made]
