"""Large results reuse memory that nobody holds, and only that."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.interpreter.copies import ResultPool

SHAPE = (512, 1024)


def _address(array: np.ndarray[object, np.dtype[np.float32]]) -> int:
    return int(array.ctypes.data)


def test_a_dropped_result_is_used_again() -> None:
    pool = ResultPool()
    first = pool.empty(SHAPE, np.float32)
    at = _address(first)
    del first
    assert _address(pool.empty(SHAPE, np.float32)) == at


def test_a_held_result_is_not() -> None:
    pool = ResultPool()
    held = [pool.empty(SHAPE, np.float32) for _ in range(10)]
    for i, array in enumerate(held):
        array[...] = i
    assert len({_address(a) for a in held}) == 10
    assert [float(a[5, 5]) for a in held] == list(range(10))


def test_a_view_of_a_result_holds_it() -> None:
    pool = ResultPool()
    corner = pool.empty(SHAPE, np.float32)[3:4, ::2].T
    corner[...] = 7
    other = pool.empty(SHAPE, np.float32)
    other[...] = 1
    assert (corner == 7).all()


def test_another_size_or_type_gets_memory_that_fits() -> None:
    pool = ResultPool()
    del (first := {"x": pool.empty(SHAPE, np.float32)})["x"]
    assert pool.empty((511, 1024), np.float32).nbytes == 511 * 1024 * 4
    assert pool.empty((1024, 1024), np.float16).shape == (1024, 1024)
    assert not first


def test_small_results_are_plain_arrays() -> None:
    assert ResultPool().empty((3,), np.float32).base is None


def test_no_memory_for_a_result() -> None:
    with pytest.raises(tflgpu.AllocationError, match="not enough memory for a copy of a result"):
        ResultPool().empty((1 << 40, 1 << 15), np.uint8)
