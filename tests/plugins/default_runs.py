"""What the tests of the default delegate share: a model that nobody gave a delegate, and its
end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.runtime import provider

from tests.plugins import third_party_toys as toys
from tests.plugins.third_party_toys import ERRORS, WANTED, X, with_methods
from tests.running import allocated, results

VARIABLE = "TFLGPU_DEFAULT_DELEGATE"


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is a default delegate, and it is gone after the test."""
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    for error in ERRORS.values():  # which live on, with the frames that they went through
        error.__traceback__ = error.__context__ = None
    if provider._shared:
        gc.collect()
    assert not provider._shared  # whatever a test did, no device stays open


def ran(content: bytes | None = None, **arguments: Any) -> Any:
    """The report of a model that nobody gave a delegate; what it computes is checked."""
    content = toys.model() if content is None else content
    with allocated(tflgpu.Interpreter(model_content=content, **arguments)) as opened:
        for _ in range(2):
            y = results(opened, {0: X})[0]
            np.testing.assert_allclose(y, WANTED, rtol=1e-6)
        return opened.report


def why(report: Any) -> str:
    """The one reason why everything ran on the CPU."""
    assert report.backend == ""
    assert report.delegated_nodes == 0
    return str(report.common_reason)


def counted(base: Any) -> Any:
    """A device that counts how many there are."""
    inner = base.__init__

    def init(self: Any) -> None:
        inner(self)
        made.opened += 1

    def close(self: Any) -> None:
        base.close(self)
        made.closed += 1

    made: Any = with_methods(base, __init__=init, close=close, opened=0, closed=0)
    return made
