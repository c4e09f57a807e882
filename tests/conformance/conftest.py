"""For conformance of the shipped backends."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compiled_quickly(pocl_without_its_optimiser: None) -> None:
    """Kernels of this folder run once."""
