"""`TfliteRuntime`: a `.tflite` model in MLServer, and so in KServe (`tflgpu[mlserver]`)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.codecs.numpy import to_datatype
from mlserver.errors import InferenceError, MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

from tflgpu.errors import BusyError, InputError, TflgpuError
from tflgpu.interpreter.callers import Pool
from tflgpu.interpreter.named_tensors import NamedTensor
from tflgpu.ir.brief import listed


class TfliteRuntime(MLModel):  # type: ignore[misc, unused-ignore]
    """Serves a `.tflite` model by the open inference protocol; model-settings.json names it.

    ``parameters.uri`` is the file, or a folder with a model.tflite; ``parameters.extra`` are the
    arguments of `tflgpu.Pool`.
    """

    async def load(self) -> bool:
        """Open the model, and describe its inputs and outputs by the first signature.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Pool`.
        """
        path = await get_model_uri(self.settings, wellknown_filenames=["model.tflite"])
        parameters = self.settings.parameters
        extra: dict[str, Any] = dict((parameters and parameters.extra) or {})
        self._pool = await asyncio.to_thread(partial(Pool, path, **extra))
        self.inputs = [_metadata(each) for each in self._pool.inputs]
        self.outputs = [_metadata(each) for each in self._pool.outputs]
        self._names = self._pool.input_names
        return True

    async def unload(self) -> bool:
        """Close the model, after the requests that are being served."""
        await asyncio.to_thread(self._pool.close)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request.

        Raises:
            InferenceError: inputs that do not fit the model, or an output that it does not have.
            MLServerError: no copy of the model was free (503), or the device failed (500).
        """
        try:
            given = {each.name: self.decode(each, NumpyCodec) for each in payload.inputs}
        except (ValueError, TypeError) as error:
            raise InferenceError(f"an input is not what its shape and type say: {error}") from error
        if sorted(given) != sorted(self._names):
            raise InferenceError(f"inputs {listed(given)}; the model has {listed(self._names)}")
        try:
            results = await self._pool.run(*(given[name] for name in self._names))
        except InputError as error:
            raise InferenceError(str(error)) from error
        except BusyError as error:
            raise MLServerError(str(error), 503) from error
        except TflgpuError as error:
            raise MLServerError(str(error), 500) from error
        found = results.asdict()
        wanted = [each.name for each in payload.outputs or ()] or list(found)
        unknown = [name for name in wanted if name not in found]
        if unknown:
            raise InferenceError(f"no outputs {listed(unknown)}; the model has {listed(found)}")
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[NumpyCodec.encode_output(name, found[name]) for name in wanted],
        )


def _metadata(tensor: NamedTensor) -> MetadataTensor:
    """The protocol's description; a leading dimension of one item is any number of items."""
    shape = list(tensor.open_shape)
    if shape[:1] == [1]:
        shape[0] = -1
    return MetadataTensor(
        name=tensor.name, datatype=to_datatype(np.dtype(tensor.dtype)), shape=shape
    )
