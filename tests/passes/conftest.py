"""What the tests of passes build graphs with, and how they count kernels."""

from __future__ import annotations

import pytest
from tflgpu.compiler.join_reads import JoinReads

from tests.passes.harness import Maker


@pytest.fixture
def g() -> Maker:
    """An empty graph to add operators to."""
    return Maker()


@pytest.fixture
def passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are counted as passes leave them, and nothing is computed in the loads of others."""
    monkeypatch.setattr(JoinReads, "_fits", lambda *_: False)
