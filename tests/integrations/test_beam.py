"""`tflgpu.integrations.beam` in Beam's DirectRunner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.demo import load_digits
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.integrations.programs import run_program

beam = pytest.importorskip("apache_beam", reason='needs pip install "tflgpu[beam]"')

from apache_beam.ml.inference.base import ModelMetadata, RunInference  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402
from apache_beam.transforms.window import FixedWindows, TimestampedValue  # noqa: E402
from tflgpu.integrations.beam import TfliteModelHandler  # noqa: E402

OPTIONS = {"backend": "cpu_ref"}
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) + 1


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


def scaled(factor: int) -> bytes:
    """``y`` is ``factor`` times ``x``."""
    tensors = [
        TensorSpec("x", (1, 2)), TensorSpec("y", (1, 2)),
        TensorSpec("factor", (), data=np.float32(factor)),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, [OperatorSpec("MUL", {}, [0, 2], [1])], [0], [1]))


def lookup() -> bytes:
    """Rows of a table; NumPy refuses numbers of rows that there are not."""
    tensors = [
        TensorSpec("words", (1, 2), DType.I32), TensorSpec("table", (5, 4), data=TABLE),
        TensorSpec("rows", (1, 2, 4)),
    ]  # fmt: skip
    steps = [OperatorSpec("GATHER", {"axis": 0}, [1, 0], [2])]
    return write_model(ModelSpec(tensors, steps, [0], [2]))


def windows(collection: Any, name: str) -> Any:
    """Elements at their times, in windows of ten seconds."""
    return (
        collection
        | f"times of {name}" >> beam.MapTuple(lambda at, value: TimestampedValue(value, at))
        | f"windows of {name}" >> beam.WindowInto(FixedWindows(10))
    )


@pytest.mark.parametrize("batch", [1, 4])
def test_a_model_that_is_changed_in_the_middle(tmp_path: Path, batch: int) -> None:
    """By a side input: each window has the model of its time, the first that of the handler."""
    paths = {}
    for factor in (2, 3, 4):
        paths[factor] = str(tmp_path / f"{factor}.tflite")
        Path(paths[factor]).write_bytes(scaled(factor))
    changes = [(1, ModelMetadata("", "")), (11, ModelMetadata(paths[3], "three"))]
    changes.append((21, ModelMetadata(paths[4], "four")))
    numbers = [(at, np.full(2, at, np.float32)) for at in range(30)]

    def check(results: list) -> None:
        assert len(results) == len(numbers)
        for result in results:
            at = int(result.example[0])
            assert result.model_id == paths[2 + at // 10]
            assert result.inference["y"].tolist() == [at * (2 + at // 10)] * 2

    handler = TfliteModelHandler(paths[2], batch=batch, options=OPTIONS)
    with beam.Pipeline("FnApiRunner") as pipeline:
        models = windows(pipeline | "models" >> beam.Create(changes), "models")
        examples = windows(pipeline | "numbers" >> beam.Create(numbers), "numbers")
        assert_that(examples | RunInference(handler, model_metadata_pcoll=models), check)


POISONED = [np.array(row, np.int32) for row in ([0, 1], [4, 3], [2, 99], [3, 3])]


@pytest.mark.parametrize("large_model", [False, True])
def test_a_poisoned_example_is_its_own_error(large_model: bool) -> None:
    """With ``keep_errors``; also by a model in another process."""

    def check(results: list) -> None:
        assert len(results) == len(POISONED)
        for result in results:
            if 99 in result.example:
                assert type(result.inference) is tflgpu.InputError
                assert "99" in str(result.inference)
            else:
                np.testing.assert_array_equal(result.inference["rows"], TABLE[result.example])

    handler = TfliteModelHandler(
        lookup(), batch=4, keep_errors=True, options=OPTIONS, large_model=large_model
    )
    with beam.Pipeline("FnApiRunner") as pipeline:
        assert_that(pipeline | beam.Create(POISONED) | RunInference(handler), check)


def test_without_it_beam_has_the_whole_batch() -> None:
    def check(failed: list) -> None:
        ((batch, error),) = failed
        assert len(batch) == len(POISONED)
        assert error[0] is tflgpu.InputError

    handler = TfliteModelHandler(lookup(), batch=4, options=OPTIONS)
    with beam.Pipeline("FnApiRunner") as pipeline:
        inference = RunInference(handler).with_exception_handling()
        _, other = pipeline | beam.Create(POISONED) | inference
        assert_that(other.failed_inferences, check)


def test_the_page_program(tmp_path: Path) -> None:
    run_program("integrations.beam", tmp_path)
