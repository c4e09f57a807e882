"""Copies agree with NumPy's, large or small, contiguous or not."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.interpreter.copies import copy


@pytest.mark.parametrize("shape", [(), (3,), (1, 257, 257, 21), (7, 1 << 20)])
def test_every_element_arrives(shape: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).random(shape, np.float32)
    target = np.zeros(shape, np.float32)
    copy(target, source)
    assert (target == source).all()


def test_strided_arrays() -> None:
    source = np.random.default_rng(0).random((2048, 2048), np.float32).T
    target = np.zeros((2048, 4096), np.float32)[:, ::2]
    copy(target, source)
    assert (target == source).all()
