from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tflgpu
from litert_models import DEVICES

pytest.importorskip("ai_edge_litert")


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable asks for a CPU side, so that the default is LiteRT's."""
    monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)


@pytest.fixture(params=DEVICES)
def delegate(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[tflgpu.GpuDelegate]:
    """A delegate on each of two devices."""
    options = DEVICES[request.param]
    require_backend(options["backend"])
    with tflgpu.GpuDelegate(**options) as made:
        yield made
