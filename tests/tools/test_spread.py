"""`LatencySpread`: quantiles in milliseconds, and what is said of a measurement that is no good."""

from __future__ import annotations

import pytest
from tflgpu.tools.spread import LatencySpread


def test_numbers_are_milliseconds() -> None:
    spread = LatencySpread.of([n * 1e-3 for n in range(1, 101)])
    assert (spread.count, spread.min, spread.max) == (100, 1, 100)
    assert spread.p50 == pytest.approx(50.5)
    assert spread.p95 == pytest.approx(95.05)
    assert spread.p99 == pytest.approx(99.01)
    assert spread.mean == pytest.approx(50.5)
    assert spread.deviation == pytest.approx(28.866, rel=1e-4)


def test_even_times_bring_no_warning() -> None:
    assert LatencySpread.of([1e-3] * 99 + [9e-3]).warnings == ()


def test_a_large_spread_is_said() -> None:
    (warning,) = LatencySpread.of([1e-3, 1e-3, 1e-3, 2e-3] * 25).warnings
    assert "one call in 20 takes 100% longer than the median" in warning


def test_a_drift_is_said() -> None:
    (warning,) = LatencySpread.of([1.1e-3] * 50 + [1e-3] * 50).warnings
    assert "later calls took -9% against earlier ones" in warning


def test_few_calls_have_no_drift() -> None:
    assert LatencySpread.of([1.1e-3, 1e-3]).drift == 0
