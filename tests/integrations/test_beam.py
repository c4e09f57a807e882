"""`tflgpu.integrations.beam` in Beam's DirectRunner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflgpu
from tflgpu.demo import load_digits

from tests.integrations.programs import run_program

beam = pytest.importorskip("apache_beam", reason='needs pip install "tflgpu[beam]"')

from apache_beam.ml.inference.base import RunInference  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402
from tflgpu.integrations.beam import TfliteModelHandler  # noqa: E402

OPTIONS = {"backend": "cpu_ref"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "digits.tflite"
    file.write_bytes(load_digits().model)
    return str(file)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_pipeline_answers_as_the_model(path: str, batch: int) -> None:
    images = load_digits().images[:10, 0]
    with tflgpu.Model(path, backend="cpu_ref") as model:
        (name,), (wanted,) = model.output_names, model(images)

    def check(results: list) -> None:
        assert len(results) == len(images)
        for result in results:
            (row,) = [n for n, image in enumerate(images) if (image == result.example).all()]
            np.testing.assert_allclose(result.inference[name], wanted[row], atol=1e-5)
            assert result.model_id == path

    handler = TfliteModelHandler(path, batch=batch, options=OPTIONS)
    with beam.Pipeline("DirectRunner") as pipeline:
        assert_that(pipeline | beam.Create(list(images)) | RunInference(handler), check)


def test_examples_by_name_and_those_that_do_not_fit(path: str) -> None:
    handler = TfliteModelHandler(path, options=OPTIONS)
    loaded = handler.load_model()
    images = load_digits().images[:3, 0]
    with tflgpu.Model(path, backend="cpu_ref") as model:
        (name,) = model.input_names
    by_name = handler.run_inference([{name: image} for image in images], loaded)
    plain = handler.run_inference(list(images), loaded)
    for one, other in zip(by_name, plain, strict=True):
        for output, array in one.inference.items():
            np.testing.assert_array_equal(array, other.inference[output])
    with pytest.raises(tflgpu.InputError, match="differ in names or shapes"):
        handler.run_inference([images[0], images[1][:4]], loaded)
    with pytest.raises(tflgpu.InputError, match="no input is called"):
        handler.run_inference([{"nonsense": images[0]}], loaded)
    with pytest.raises(tflgpu.InputError, match="inference_args"):
        handler.run_inference(list(images), loaded, {"temperature": 1})


def test_what_beam_is_told(path: str) -> None:
    told = TfliteModelHandler(path, batch=8).batch_elements_kwargs()
    assert (told["min_batch_size"], told["max_batch_size"]) == (8, 8)
    told = TfliteModelHandler(path, batch=8, max_batch_size=4).batch_elements_kwargs()
    assert (told["min_batch_size"], told["max_batch_size"]) == (4, 4)
    handler = TfliteModelHandler("missing.tflite", large_model=True, options=OPTIONS)
    assert handler.share_model_across_processes()
    assert not TfliteModelHandler(path).share_model_across_processes()
    handler.update_model_path(path)
    assert len(handler.load_model().predict([load_digits().images[0, 0]])) == 1
    assert handler.get_metrics_namespace() == "BeamML_tflgpu"


def test_the_page_program(tmp_path: Path) -> None:
    run_program("integrations.beam", tmp_path)
