"""Affine quantization values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tflgpu.errors import GraphError
from tflgpu.ir.quant import Quantization


def test_one_scale_for_the_whole_tensor() -> None:
    q = Quantization((0.5,), (3,))
    assert not q.per_axis
    scale, zero_point = q.broadcast(4)
    assert scale.shape == zero_point.shape == ()
    stored = np.array([[0, 3], [5, 255]], np.uint8)
    np.testing.assert_array_equal(q.dequantize(stored), [[-1.5, 0], [1, 126]])


def test_scales_along_an_axis() -> None:
    q = Quantization((1.0, 2.0, 4.0), (0, 1, -1), axis=1)
    assert q.per_axis
    scale, zero_point = q.broadcast(3)
    assert scale.shape == zero_point.shape == (1, 3, 1)
    stored = np.array([[[1, 2], [1, 2], [1, 2]]], np.int8)
    np.testing.assert_array_equal(q.dequantize(stored), [[[1, 2], [0, 2], [8, 12]]])


def test_whole_numbers_do_not_overflow_on_the_way() -> None:
    q = Quantization((1.0,), (-128,))
    assert q.dequantize(np.array([127], np.int8)).tolist() == [255.0]
    widest = Quantization((1.0,), (-1,)).dequantize(np.array([2**31 - 1], np.int32))
    assert widest.tolist() == [2.0**31]


@pytest.mark.parametrize(
    ("scale", "zero_point", "axis", "message"),
    [
        ((), (), 0, "at least one, not 0 for 0"),
        ((1.0, 2.0), (0,), 0, "not 1 for 2"),
        ((-1.0,), (0,), 0, "scale -1.0"),
        ((math.nan,), (0,), 0, "scale nan"),
        ((math.inf,), (0,), 0, "scale inf"),
        ((1.0,), (0,), -1, "axis -1 is negative"),
    ],
)
def test_refused(
    scale: tuple[float, ...], zero_point: tuple[int, ...], axis: int, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Quantization(scale, zero_point, axis)


def test_axis_beyond_the_rank() -> None:
    with pytest.raises(GraphError, match="axis 2 of a tensor of rank 2"):
        Quantization((1.0, 2.0), (0, 0), 2).broadcast(2)
