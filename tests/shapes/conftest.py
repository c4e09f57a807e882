"""What tests of open shapes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tflgpu import GpuDelegate

from tests.running import delegates_on
from tests.shapes.shape_models import BACKENDS


@pytest.fixture(scope="module", params=BACKENDS)
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], object]
) -> Iterator[list[GpuDelegate]]:
    """What an interpreter is given: nothing, or a delegate that falls back."""
    yield from delegates_on(request.param, require_backend)
