"""`TfliteRuntime`: a `.tflite` model in MLServer, and so in KServe (`tflgpu[mlserver]`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

import mlserver
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.codecs.numpy import to_datatype
from mlserver.errors import InferenceError, MLServerError
from mlserver.metrics.errors import InvalidModelContext
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    RequestInput,
    ResponseOutput,
)
from mlserver.utils import get_model_uri

from tflgpu.errors import BusyError, InputError, TflgpuError
from tflgpu.errors.blame import listed
from tflgpu.interpreter.callers import Pool
from tflgpu.interpreter.model import Results
from tflgpu.interpreter.named_tensors import NamedTensor
from tflgpu.ir.dtypes import Array

#: Metrics beside MLServer's own, and what they say.
_METRICS = {
    "tflgpu_pool_seconds": "Seconds that requests were in the pool: waiting, copied and computed",
    "tflgpu_pool_items": "Items of requests",
}


class TfliteRuntime(MLModel):  # type: ignore[misc, unused-ignore]
    """Serves a `.tflite` model by the open inference protocol; model-settings.json names it.

    ``parameters.uri`` is the file, or a folder with a model.tflite; ``parameters.extra`` are the
    arguments of `tflgpu.Pool`.
    """

    _pool: Pool | None = None

    async def load(self) -> bool:
        """Open the model, and describe its inputs and outputs by the first signature.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Pool`.
        """
        path = await get_model_uri(self.settings, wellknown_filenames=["model.tflite"])
        parameters = self.settings.parameters
        extra: dict[str, Any] = dict((parameters and parameters.extra) or {})
        pool = self._pool = await asyncio.to_thread(partial(Pool, path, **extra))
        self._runs: set[asyncio.Future[Results]] = set()
        self._tensors = {each.name: each for each in pool.inputs}
        self.inputs = [_metadata(each) for each in pool.inputs]
        self.outputs = [_metadata(each) for each in pool.outputs]
        with contextlib.suppress(InvalidModelContext):
            for name, said in _METRICS.items():
                mlserver.register(name, said)
        return True

    async def unload(self) -> bool:
        """Close the model, after the requests that have come."""
        if self._pool is not None:
            if self._runs:
                await asyncio.wait(self._runs)
            await asyncio.to_thread(self._pool.close)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request.

        Raises:
            InferenceError: inputs that do not fit the model, or an output that it does not have.
            MLServerError: no copy of the model was free (503), or the device failed (500).
        """
        assert self._pool is not None
        arrays = {each.name: self._array(each) for each in payload.inputs}
        if sorted(arrays) != sorted(self._tensors):
            raise InferenceError(f"inputs {listed(arrays)}; the model has {listed(self._tensors)}")
        start = time.perf_counter()
        run = asyncio.ensure_future(self._pool.run(*(arrays[name] for name in self._tensors)))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        try:
            # A client that goes away ends its own wait: the others of a batch need the run.
            results = (await asyncio.shield(run)).asdict()
        except InputError as error:
            raise InferenceError(str(error)) from error
        except BusyError as error:
            raise MLServerError(str(error), 503) from error
        except TflgpuError as error:
            raise MLServerError(str(error), 500) from error
        _log(time.perf_counter() - start, results)
        names = [each.name for each in payload.outputs or ()] or list(results)
        unknown = [name for name in names if name not in results]
        if unknown:
            raise InferenceError(f"no outputs {listed(unknown)}; the model has {listed(results)}")
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[_output(name, results[name]) for name in names],
        )

    def _array(self, tensor: RequestInput) -> Array:
        known = self._tensors.get(tensor.name)
        if known is None:
            raise InferenceError(
                f"no input is called {tensor.name!r}; the model has {listed(self._tensors)}"
            )
        try:
            if known.dtype.kind == "S":
                texts = np.array(StringCodec.decode_input(tensor), np.object_)
                array: Array = texts.reshape(tensor.shape)
            else:
                array = self.decode(tensor, NumpyCodec)
        except (ValueError, TypeError) as error:
            raise InferenceError(
                f"input {tensor.name!r} is not what its shape and type say: {error}"
            ) from error
        return array


def _metadata(tensor: NamedTensor) -> MetadataTensor:
    """The protocol's description; a leading dimension of one item is any number of items."""
    shape = list(tensor.open_shape)
    if shape[:1] == [1]:
        shape[0] = -1
    return MetadataTensor(
        name=tensor.name, datatype=to_datatype(np.dtype(tensor.dtype)), shape=shape
    )


def _output(name: str, array: Array) -> ResponseOutput:
    if array.dtype.kind not in "SO":
        return NumpyCodec.encode_output(name, array)
    texts = StringCodec.encode_output(name, array.reshape(-1).tolist(), use_bytes=False)
    texts.shape = list(array.shape)
    return texts


def _log(seconds: float, results: dict[str, Array]) -> None:
    first = next(iter(results.values()), None)
    items = len(first) if first is not None and first.ndim else 1
    # Outside of a server there is nothing to tell.
    with contextlib.suppress(InvalidModelContext):
        mlserver.log(tflgpu_pool_seconds=seconds, tflgpu_pool_items=items)
