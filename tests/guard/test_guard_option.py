"""What ``accuracy_guard`` may be given as, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu import DelegateOptions, OptionError
from tflgpu.options import options_from_text
from tflgpu.options.accuracy import AccuracyGuard, OnFailure
from tflgpu.options.delegate_options import known_options

DEFAULT = AccuracyGuard()
KEEP = AccuracyGuard(runs=3, tolerance=0.02, on_failure=OnFailure.KEEP)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None), (0, None), (False, None), ("off", None), ("0", None), (True, DEFAULT),
        ("on", DEFAULT), (1, DEFAULT), ("1", DEFAULT), (np.int64(2), AccuracyGuard(runs=2)),
        ("runs=3, tolerance=2e-2, on_failure=keep", KEEP),
        ({"runs": 3, "tolerance": 0.02, "on_failure": "KEEP"}, KEEP), (KEEP, KEEP),
        ("tolerance=1", AccuracyGuard(tolerance=1)),
    ],
)  # fmt: skip
def test_what_it_is_given_as(given: Any, meant: AccuracyGuard | None) -> None:
    assert DelegateOptions(accuracy_guard=given).accuracy_guard == meant
    if isinstance(given, str):
        assert options_from_text({"accuracy_guard": given}).accuracy_guard == meant


def test_it_is_off_unless_asked_for() -> None:
    assert DelegateOptions().accuracy_guard is None
    assert options_from_text({"accuracy_guard": "none"}).accuracy_guard is None


def test_it_may_come_from_the_environment() -> None:
    found = DelegateOptions.from_environment({"TFLGPU_ACCURACY_GUARD": "runs=3,tolerance=0.02"})
    assert found.accuracy_guard == AccuracyGuard(runs=3, tolerance=0.02)
    with pytest.raises(OptionError, match=r"TFLGPU_ACCURACY_GUARD.*runs is a number, not 'often'"):
        DelegateOptions.from_environment({"TFLGPU_ACCURACY_GUARD": "often"})


@pytest.mark.parametrize("guard", [None, DEFAULT, KEEP])
def test_it_is_shown_as_it_is_taken(guard: AccuracyGuard | None) -> None:
    kind = known_options()["accuracy_guard"].kind
    assert kind.parse("accuracy_guard", kind.shown(guard)) == guard


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1, "runs is -1; the least is 1"),
        (1.5, "runs is a whole number"),
        ("often", "runs is a number, not 'often'"),
        ("2.5", "runs is a whole number"),
        ("runs=0", "runs is 0"),
        ("runs=3;tolerance=1", "runs is a number"),
        ("runs=3,often", "pairs as in"),
        ("rons=3", "has no 'rons'; it has runs, tolerance, on_failure"),
        ({"tolerance": 0}, "tolerance is a number above 0"),
        ("tolerance=nan", "tolerance is a number above 0"),
        ({"tolerance": True}, "tolerance is a number above 0"),
        ({"on_failure": "ignore"}, "on_failure is one of cpu, keep, error, not 'ignore'"),
        ([1], "runs is a whole number"),
        (np.array([1, 2]), "runs is a whole number"),
    ],
)
def test_what_is_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        DelegateOptions(accuracy_guard=given)
    assert "accuracy_guard" in str(caught.value)
