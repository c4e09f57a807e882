"""Sparse constants become dense."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.errors import ModelError
from tflgpu.tflite.sparsity import Level, Sparsity

from tests.tflite import samples


def test_blocks() -> None:
    pattern, values = samples.sparse_constant()
    want = np.zeros((4, 6), np.float32)
    want[0:2, 2:4] = [[1, 2], [3, 4]]
    want[2:4, 0:2] = [[5, 6], [7, 8]]
    want[2:4, 4:6] = [[9, 10], [11, 12]]
    np.testing.assert_array_equal(pattern.densify(values, (4, 6)), want)


def test_compressed_rows_in_another_order() -> None:
    dense = np.array([[0, 0, 7], [5, 0, 0], [0, 0, 0], [1, 0, 2]], np.int8)
    # Columns are traversed first.
    columns = [np.flatnonzero(dense[:, c]) for c in range(3)]
    pattern = Sparsity(
        (1, 0),
        (),
        (
            Level(3),
            Level(
                None,
                np.cumsum([0, *map(len, columns)]).astype(np.int32),
                np.concatenate(columns).astype(np.uint16),
            ),
        ),
    )
    values = np.concatenate([dense[rows, c] for c, rows in enumerate(columns)])
    np.testing.assert_array_equal(pattern.densify(values, (4, 3)), dense)


def test_nothing_stored() -> None:
    empty = np.empty(0, np.uint8)
    pattern = Sparsity((0, 1), (), (Level(2), Level(None, np.zeros(3, np.uint8), empty)))
    dense = pattern.densify(np.empty(0, np.float32), (2, 5))
    assert dense.shape == (2, 5)
    assert not dense.any()


def test_counting_values_allocates_nothing_for_a_huge_shape() -> None:
    """All dense: as many values as the shape has elements, more than any memory."""
    sizes = (2**31 - 1,) * 2
    pattern = Sparsity((0, 1), (), tuple(Level(s) for s in sizes))
    assert pattern.count_values(sizes, "here") == sizes[0] ** 2


def test_too_few_values() -> None:
    pattern, values = samples.sparse_constant()
    with pytest.raises(ModelError, match="11 values stored, the layout has 12"):
        pattern.densify(values[:-1], (4, 6))


def test_a_scalar() -> None:
    """It has no dimensions to be sparse in, and one value."""
    dense = Sparsity((), (), ()).densify(np.array([3], np.float32), ())
    assert dense.shape == ()
    assert dense == 3
