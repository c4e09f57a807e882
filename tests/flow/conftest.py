"""Where the pieces of a model run: nowhere but on the CPU, by NumPy as a device, on a real
driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu import GpuDelegate, Interpreter

from tests.flow.kept_variables import ADDING
from tests.running import delegates_on
from tests.watched_device import WatchedDevice


@pytest.fixture(scope="session", params=["none", "cpu_ref", "opencl"])
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], object]
) -> Iterator[list[GpuDelegate]]:
    yield from delegates_on(request.param, require_backend)


@pytest.fixture(scope="session")
def by_numpy(require_backend: Callable[[str], object]) -> Iterator[list[GpuDelegate]]:
    require_backend("cpu_ref")
    with GpuDelegate(backend="cpu_ref") as made:
        yield [made]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> WatchedDevice:
    return WatchedDevice(monkeypatch)


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """Makes an interpreter on the kernel interpreter, or on what is asked for."""
    held: list[Any] = []

    def make(content: bytes = ADDING, **options: Any) -> Any:
        delegate = GpuDelegate(**{"backend": "cpu_ref", "device": 1, **options})
        made = Interpreter(model_content=content, experimental_delegates=[delegate])
        held.extend((delegate, made))
        made.allocate_tensors()
        return made

    yield make
    while held:
        held.pop().close()
