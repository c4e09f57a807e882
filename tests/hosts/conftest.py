"""For tests of LiteRT as the host."""

from __future__ import annotations

import gc

import pytest
from tflgpu.plugins.registry import Registry


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE_QUANT and WHERE stand for operators that nobody here defines."""
    defined = Registry.ops
    monkeypatch.setattr(
        Registry,
        "ops",
        lambda self: {n: op for n, op in defined(self).items() if n not in ("FAKE_QUANT", "WHERE")},
    )


@pytest.fixture(autouse=True)
def _no_kernels_of_earlier_tests() -> None:
    """Tests look at all kernels that LiteRT holds. An interpreter that an earlier test left in a
    circle of references, as a caught exception is, has some until Python's collector comes."""
    gc.collect()
