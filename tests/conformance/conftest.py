"""For conformance of the shipped backends."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _pocl_without_its_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL's compiler takes most of the time of these kernels, which run once, and half of it without
    optimising (26.8 and 13.5 CPU seconds for 89 checks, Python's own time included). PoCL reads the
    variable for each program. The other tests, and these with TFLGPU_TEST_EVERYTHING=1, see what its
    optimiser makes of kernels."""
    if not os.environ.get("TFLGPU_TEST_EVERYTHING"):
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
