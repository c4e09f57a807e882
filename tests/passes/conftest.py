"""What the tests of passes build graphs with."""

from __future__ import annotations

import pytest

from tests.passes.harness import Maker


@pytest.fixture
def g() -> Maker:
    """An empty graph to add operators to."""
    return Maker()
