"""How far off a tensor is, in numbers that a person can check."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Value
from tflgpu.ir.quant import Quantization
from tflgpu.runtime.guard.criterion import NOTHING, Off, off_by, worst


def off(got: object, expected: object, quant: Quantization | None = None) -> Off:
    a, b = np.asarray(got), np.asarray(expected)
    value = Value(0, "x", b.shape, DType.from_numpy(b.dtype), quant=quant)
    return off_by(a, b, value)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def test_it_is_a_share_of_the_largest_magnitude() -> None:
    found = off(f32(1, -8, 0.5), f32(1, -10, 0))
    assert (found.share, found.lost, found.elements) == (pytest.approx(0.2), 0, 3)
    assert found.beyond(0.19) and not found.beyond(0.21)
    assert found.error == found.share


def test_what_is_lost_is_always_too_much() -> None:
    found = off(f32(np.nan, np.inf, 3), f32(1, 2, 3))
    assert (found.share, found.lost) == (0, 2)
    assert found.beyond(1e9) and found.error is None
    assert str(found) == "2 of 3 values are NaN or infinite"


def test_nothing_is_expected_where_f32_is_not_finite() -> None:
    assert off(f32(1, 2, 5), f32(np.nan, np.inf, 5)) == Off(0, 0, 3)


def test_a_tensor_of_zeros_has_a_scale_of_1() -> None:
    assert off(f32(0.25, 0), f32(0, 0)).share == 0.25


def test_whole_numbers_and_truth_values_differ_or_not() -> None:
    assert off(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 1000])).share == 0.25
    assert off(np.array([True, False]), np.array([True, True])).share == 0.5


def test_a_quantized_step_is_no_difference() -> None:
    quant = Quantization((0.5,), (10,))
    stored = np.array([10, 20, 110], np.int8)
    assert off(stored + np.array([1, -1, 1], np.int8), stored, quant).share == 0
    # Three steps of 0.5, of which one is free, of 50.
    assert off(stored + np.array([3, 0, 0], np.int8), stored, quant).share == pytest.approx(0.02)


def test_the_worst_has_lost_most() -> None:
    assert worst([]) is NOTHING
    lost, far = Off(0, 1, 2), Off(9, 0, 2)
    assert worst([NOTHING, far, lost]) is lost
    assert worst([NOTHING, far]) is far


def test_no_elements_are_never_off() -> None:
    assert off(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == NOTHING
