"""What the kernel language's tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.language.cl_runner import ClRunner


@pytest.fixture(scope="session")
def opencl(require_backend: Callable[[str], object]) -> ClRunner:
    """An OpenCL device to run printed kernels on."""
    require_backend("opencl")
    return ClRunner()
