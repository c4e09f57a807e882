"""How far a function of the kernel language may be off on a device."""

from __future__ import annotations

import numpy as np
from tflgpu.conformance.node_checks import _beyond_class


def test_near_a_zero_of_log_the_class_decides() -> None:
    want = np.array([1e-4, 2.0], np.float32)
    near = want + np.array([1e-6, 0], np.float32)
    assert _beyond_class("log", near, want, []) == 0
    far = want + np.array([4e-6, 0], np.float32)
    assert _beyond_class("log", far, want, []) > 100


def test_an_fma_may_round_its_product_and_no_more() -> None:
    a, b = np.float32([3.1]), np.float32([7.7])
    c = -(a * b) + np.float32(1e-5)
    exact = np.float32(a.astype(np.float64) * b + c)
    twice = a * b + c
    assert twice != exact
    assert _beyond_class("fma", twice, exact, [a, b, c]) == 0
    assert _beyond_class("fma", exact + np.float32(1e-4), exact, [a, b, c]) > 5


def test_other_wrong_results_count_in_full() -> None:
    want = np.float32([1.0, 2.0])
    assert _beyond_class("exp", want * np.float32([1, 1.001]), want, []) > 1000
    assert _beyond_class("exp", np.float32([1, np.nan]), want, []) == np.inf
