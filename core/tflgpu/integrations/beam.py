"""`TfliteModelHandler`: a `.tflite` model in Apache Beam's `RunInference` (`tflgpu[beam]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from tflgpu.errors import InputError
from tflgpu.interpreter.model import Model
from tflgpu.ir.dtypes import Array


class LoadedModel:
    """An open model; its method takes and returns plain values, which cross processes."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(self, examples: Sequence[Any]) -> list[dict[str, Array]]:
        """Outputs by name, one dictionary for each example.

        Args:
            examples: Each is an array without the leading dimension of the model's input, or a
                dictionary of such arrays by input name where the model has several inputs.

        Raises:
            InputError: examples of different shapes, names that are not those of the inputs, or a
                model whose outputs do not have a row for each example.
            DeviceError: the device failed.
        """
        first = examples[0]
        try:
            if isinstance(first, Mapping):
                named = {name: np.stack([each[name] for each in examples]) for name in first}
                results = self._model(**named)
            else:
                results = self._model(np.stack(examples))
        except (KeyError, ValueError) as error:
            raise InputError(
                f"examples of one batch differ in names or shapes: {error}; make them equal before "
                "RunInference"
            ) from error
        for name, array in results.asdict().items():
            if array.shape[:1] != (len(examples),):
                raise InputError(
                    f"output {name!r} has the shape {list(array.shape)} for {len(examples)} "
                    "examples; a model for RunInference has one row for each"
                )
        return [
            {name: array[row] for name, array in results.asdict().items()}
            for row in range(len(examples))
        ]


class TfliteModelHandler(
    ModelHandler[Any, PredictionResult, LoadedModel]  # type: ignore[misc, unused-ignore]
):
    """Runs a `.tflite` model on the examples of a pipeline.

        examples | RunInference(TfliteModelHandler("model.tflite", batch=8))

    A result is a `PredictionResult`: the example, its outputs by name, and the model's path.
    """

    def __init__(
        self,
        model: str | bytes,
        *,
        batch: int = 1,
        options: Mapping[str, Any] | None = None,
        large_model: bool = False,
        keep_errors: bool = False,
        **beam: Any,
    ) -> None:
        """Say how to open a model; workers open it.

        Args:
            model: Path of a `.tflite` file, also in a file system of Beam's ("gs://..."), or what
                is in it.
            batch: Items that a run computes at once, as `tflgpu.Model` takes it. Beam then gathers
                so many examples, unless `beam` says otherwise.
            options: Of `tflgpu.Model`, such as ``{"device": "..."}``.
            large_model: Whether the processes of a worker share one copy of the model.
            keep_errors: What becomes of an example that does not fit: with True its result has the
                `InputError` as its inference, and the others of its batch are computed without it;
                otherwise the whole batch fails, as Beam has it.
            beam: What Beam's `ModelHandler` takes besides, such as ``max_batch_size``.
        """
        super().__init__(large_model=large_model, **beam)
        self._model = self._first = model
        self._batch = batch
        self._options = dict(options or {})
        self._is_shared = large_model
        self._keep_errors = keep_errors

    def load_model(self) -> LoadedModel:
        """Open the model, in a worker.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Model`.
        """
        model = self._model
        if isinstance(model, str) and "://" in model:
            with FileSystems.open(model) as file:
                model = file.read()
        return LoadedModel(Model(model, batch=self._batch, **self._options))

    def run_inference(
        self,
        batch: Sequence[Any],
        model: LoadedModel,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """One result for each example.

        Raises:
            InputError: as `LoadedModel.predict`, unless errors are kept; or there are
                ``inference_args``, which a `.tflite` model does not have.
            DeviceError: the device failed.
        """
        if inference_args:
            raise InputError(f"a .tflite model takes no inference_args: {sorted(inference_args)}")
        model_id = self._model if isinstance(self._model, str) else None
        answers: Sequence[Any]
        try:
            answers = model.predict(batch)
        except InputError:
            if not self._keep_errors:
                raise
            answers = [_alone(model, example) for example in batch]
        return [
            PredictionResult(example, answer, model_id)
            for example, answer in zip(batch, answers, strict=True)
        ]

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """How Beam gathers examples: by ``batch`` where it is more than 1."""
        said = dict(super().batch_elements_kwargs())
        if self._batch > 1:
            most = said.setdefault("max_batch_size", self._batch)
            said.setdefault("min_batch_size", min(self._batch, most))
        return said

    def share_model_across_processes(self) -> bool:
        """Whether the processes of a worker share one copy of the model."""
        return self._is_shared

    def update_model_path(self, model_path: str | None = None) -> None:
        """Take another file from now on, as Beam's side input of models names it; without a name
        the one that the handler was made with."""
        self._model = model_path or self._first

    def get_metrics_namespace(self) -> str:
        """The namespace of `RunInference`'s counters."""
        return "BeamML_tflgpu"


def _alone(model: LoadedModel, example: Any) -> dict[str, Array] | InputError:
    try:
        return model.predict([example])[0]
    except InputError as error:
        return error
