"""`tflgpu.integrations.ray` by itself and in a local Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflgpu
from tflgpu.demo import load_digits
from tflgpu.integrations.ray import Predictor

from tests.integrations.programs import run_program


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("rows", [0, 3, 10])
def test_batches_of_any_size(batch: int, rows: int) -> None:
    digits = load_digits()
    with tflgpu.Model(digits.model, backend="cpu_ref") as model:
        (given,), (made,) = model.input_names, model.output_names
        (wanted,) = model(digits.images[:rows, 0])
    predictor = Predictor(digits.model, batch=batch, backend="cpu_ref")
    found = predictor({given: digits.images[:rows, 0], "id": np.arange(rows)})
    assert set(found) == {made, "id"}
    np.testing.assert_allclose(found[made], wanted, atol=1e-5)
    assert found["id"].tolist() == list(range(rows))


def test_columns_that_do_not_fit() -> None:
    digits = load_digits()
    predictor = Predictor(digits.model, backend="cpu_ref")
    with tflgpu.Model(digits.model, backend="cpu_ref") as model:
        (given,), (made,) = model.input_names, model.output_names
    images = digits.images[:2, 0]
    with pytest.raises(tflgpu.InputError, match="no columns"):
        predictor({"id": np.arange(2)})
    with pytest.raises(tflgpu.InputError, match="rename columns"):
        predictor({given: images, made: np.arange(2)})
    rows = np.empty(2, np.object_)
    rows[:] = [images[0], images[1][:4]]
    with pytest.raises(tflgpu.InputError, match="different shapes"):
        predictor({given: rows})
    rows[:] = [images[0], images[1]]
    np.testing.assert_array_equal(predictor({given: rows})[made], predictor({given: images})[made])


def test_the_page_program(tmp_path: Path) -> None:
    """In a local Ray, with batches of 8 and a last one of 4 rows."""
    pytest.importorskip("ray.data", reason='needs pip install "tflgpu[ray]"')
    run_program("integrations.ray", tmp_path)
