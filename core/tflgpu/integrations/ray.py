"""`Predictor`: a `.tflite` model in Ray Data's `map_batches` (`tflgpu[ray]`)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tflgpu.devices.assigned import assigned_devices
from tflgpu.devices.device_list import CompatibilityList
from tflgpu.errors import DeviceError, InputError, OptionError
from tflgpu.errors.blame import listed
from tflgpu.interpreter.callers import Pool
from tflgpu.interpreter.model import Results
from tflgpu.interpreter.named_tensors import NamedTensor
from tflgpu.ir.dtypes import Array

_Span = tuple[int, int]


class Predictor:
    """Runs a `.tflite` model on the batches of a data set, in an actor of Ray's.

        dataset.map_batches(
            Predictor, fn_constructor_args=("model.tflite",), batch_size=256, num_gpus=1,
            concurrency=2,
        )

    Columns that have the names of inputs are replaced by columns that have the names of outputs;
    all others stay. The actor uses the GPU that Ray has assigned to it (`worker_options`). Two
    copies of the model share it, and Ray hands on several batches at once, so that one is uploaded
    while another is computed.
    """

    def __init__(
        self,
        model: str | bytes,
        *,
        batch: int = 1,
        gpus: Sequence[int | str] | None = None,
        errors: str | None = None,
        **options: Any,
    ) -> None:
        """Open the model, in the actor.

        Args:
            model: Path of a `.tflite` file that the actor can read, or what is in it.
            batch: Rows that a run computes at once, as `tflgpu.Model` takes it; any number of rows
                may come, and the last run is filled up.
            gpus: As `worker_options` takes them.
            errors: A column to add, with the reason for a row that does not fit the model, and ""
                for others. That row's outputs are NaN (zero in columns of whole numbers), and the
                others are computed. Without it such a row is an error, which names it.
            options: Of `tflgpu.Pool`, such as ``device``.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Pool` and
                `worker_options`.
        """
        self._rows, self._errors = batch, errors
        options = worker_options(options, gpus)
        self._pool = Pool(model, batch=batch, sizes=[batch], deadline=0, **options)
        self._inputs, self._outputs = self._pool.input_names, self._pool.outputs

    async def __call__(self, columns: dict[str, Array]) -> dict[str, Array]:
        """One batch of rows, of any size.

        Raises:
            InputError: a column is missing, a row does not fit its input, or a column has the name
                of an output.
            DeviceError: the device failed.
        """
        outputs = [each.name for each in self._outputs]
        missing = [name for name in self._inputs if name not in columns]
        others = {name: column for name, column in columns.items() if name not in self._inputs}
        taken = [name for name in (*outputs, self._errors) if name in others]
        if missing or taken:
            what = f"no columns {listed(missing)}" if missing else f"columns {listed(taken)}"
            raise InputError(
                f"{what} for a model with the inputs {listed(self._inputs)} and the outputs "
                f"{listed(outputs)}; rename columns before map_batches"
            )
        count = len(columns[self._inputs[0]])
        spans = [(at, min(at + self._rows, count)) for at in range(0, count, self._rows)]
        spans = spans or [(0, 0)]
        reasons = np.full(count, "", np.object_)
        futures = [self._begin(columns, span) for span in spans]
        parts = [
            await self._finish(columns, span, future, reasons)
            for span, future in zip(spans, futures, strict=True)
        ]
        made = dict(zip(outputs, map(np.concatenate, zip(*parts, strict=True)), strict=True))
        if self._errors is not None:
            made[self._errors] = reasons
        return {**others, **made}

    def _begin(self, columns: Mapping[str, Array], span: _Span) -> Future[Results]:
        try:
            rows = (_whole(name, columns[name][slice(*span)]) for name in self._inputs)
            return self._pool.submit(*rows)
        except InputError as error:
            failed: Future[Results] = Future()
            failed.set_exception(error)
            return failed

    async def _finish(
        self, columns: Mapping[str, Array], span: _Span, future: Future[Results], reasons: Array
    ) -> Sequence[Array]:
        """The outputs of some rows; those that are refused together are tried one by one."""
        start, stop = span
        try:
            return await asyncio.wrap_future(future)
        except InputError as error:
            if stop - start > 1:
                spans = [(at, at + 1) for at in range(start, stop)]
                parts = [
                    await self._finish(columns, each, self._begin(columns, each), reasons)
                    for each in spans
                ]
                return [np.concatenate(part) for part in zip(*parts, strict=True)]
            if self._errors is None:
                raise InputError(
                    f"row {start} of a batch of {len(reasons)}: {error}; Predictor(errors=COLUMN) "
                    "goes on without such rows"
                ) from error
            reasons[start] = str(error)
            return [_blank(each) for each in self._outputs]


def worker_options(
    options: Mapping[str, Any], gpus: Sequence[int | str] | None = None
) -> dict[str, Any]:
    """Arguments for `tflgpu.Pool` with the GPUs that Ray has assigned to this worker, which it says
    by `CUDA_VISIBLE_DEVICES`: Vulkan, OpenCL and WebGPU know them by their UUIDs. A run that fails
    is made again, once, on a device that is opened anew, unless ``on_error`` says otherwise.

    Args:
        options: Arguments as they are; their device stays where they name one or the CPU, or where
            TFLGPU_DEVICE names one.
        gpus: The devices of a node, as the option ``device`` takes them, in the order of Ray's
            numbers of GPUs: for other GPUs than NVIDIA's, and for software devices.

    Raises:
        DeviceError: it cannot be told which GPUs were assigned, or none was and a GPU would be
            used that may be another worker's.
        OptionError: ``gpus`` has no device of a number.
    """
    found = {"on_error": "retry", **options}
    # A worker of Ray's has imported it.
    engine = sys.modules.get("ray")
    named = {"device", "devices"} & set(options) or options.get("backend") == "cpu"
    if named or os.environ.get("TFLGPU_DEVICE", "").strip():
        return found
    if engine is None or not engine.is_initialized():
        return found
    numbers = engine.get_runtime_context().get_accelerator_ids()["GPU"]
    assigned = f"Ray assigned {'GPU ' + ', '.join(numbers) if numbers else 'no GPU'} to this worker"
    if gpus is not None:
        if not numbers or not all(n.isdecimal() and int(n) < len(gpus) for n in numbers):
            raise OptionError(
                f"{assigned}, and gpus has {len(gpus)} devices; list one for each GPU of the node, "
                "and pass num_gpus to Ray"
            )
        return {**found, "devices": [gpus[int(number)] for number in numbers]}
    if numbers:
        devices = assigned_devices()
        if not devices:
            raise DeviceError(
                f"{assigned}, and no environment variable says which that is; list the node's "
                "devices by gpus=[...]"
            )
        return {**found, "devices": list(devices)}
    if "backend" not in options:
        choice = CompatibilityList().choice
        if choice.device is not None and choice.judgement.is_gpu(choice.device):
            raise DeviceError(
                f"{assigned}, and it would use {choice.device.name}, which may be another's; pass "
                "num_gpus=1 to Ray, or name a device or backend"
            )
    return found


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


def _blank(output: NamedTensor) -> Array:
    """An output of a row without one."""
    shape = [1, *(max(size, 1) for size in output.open_shape[1:])]
    return np.full(shape, np.nan if output.dtype.kind == "f" else 0, output.dtype)
