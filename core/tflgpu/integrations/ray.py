"""`Predictor`: a `.tflite` model in Ray Data's `map_batches` (`tflgpu[ray]`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tflgpu.errors import InputError
from tflgpu.interpreter.callers import Pool
from tflgpu.ir.brief import listed
from tflgpu.ir.dtypes import Array


class Predictor:
    """Runs a `.tflite` model on the batches of a data set, in an actor of Ray's.

        dataset.map_batches(
            Predictor, fn_constructor_args=("model.tflite",), batch_size=256, concurrency=1
        )

    Columns that have the names of inputs are replaced by columns that have the names of outputs;
    all others stay. Two copies of the model share the device, so that one takes its inputs while
    the other computes.
    """

    def __init__(self, model: str | bytes, *, batch: int = 1, **options: Any) -> None:
        """Open the model, in the actor.

        Args:
            model: Path of a `.tflite` file that the actor can read, or what is in it.
            batch: Rows that a run computes at once, as `tflgpu.Model` takes it; any number of rows
                may come, and the last run is filled up.
            options: Of `tflgpu.Pool`, such as ``device``.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Pool`.
        """
        self._rows = batch
        self._pool = Pool(model, batch=batch, sizes=[batch], deadline=0, **options)
        self._inputs, self._outputs = self._pool.input_names, self._pool.output_names

    def __call__(self, columns: dict[str, Array]) -> dict[str, Array]:
        """One batch of rows, of any size.

        Raises:
            InputError: a column is missing, does not fit its input, or has the name of an output.
            DeviceError: the device failed.
        """
        missing = [name for name in self._inputs if name not in columns]
        others = {name: column for name, column in columns.items() if name not in self._inputs}
        taken = [name for name in self._outputs if name in others]
        if missing or taken:
            what = f"no columns {listed(missing)}" if missing else f"columns {listed(taken)}"
            raise InputError(
                f"{what} for a model with the inputs {listed(self._inputs)} and the outputs "
                f"{listed(self._outputs)}; rename columns before map_batches"
            )
        arrays = [_whole(name, columns[name]) for name in self._inputs]
        count = len(arrays[0])
        starts = range(0, count, self._rows) if count else (0,)
        futures = [
            self._pool.submit(*(array[at : at + self._rows] for array in arrays)) for at in starts
        ]
        parts = zip(*(future.result() for future in futures), strict=True)
        made = [np.concatenate(part) for part in parts]
        return {**others, **dict(zip(self._outputs, made, strict=True))}


def _whole(name: str, column: Array) -> Array:
    """One array of a column whose rows may be arrays by themselves.

    Raises:
        InputError: they have different shapes.
    """
    if column.dtype != np.object_ or not len(column) or not isinstance(column[0], np.ndarray):
        return column
    try:
        return np.stack(list(column))
    except ValueError as error:
        raise InputError(f"rows of column {name!r} have different shapes: {error}") from error
