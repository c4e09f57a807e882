"""`TfliteServer`: `.tflite` models as a deployment of Ray Serve (`tflgpu[ray]`)."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ray import serve
from ray.serve.metrics import Counter, Histogram
from starlette.requests import Request
from starlette.responses import JSONResponse

from tflgpu.errors import BusyError, DeviceError, InputError, StateError, TflgpuError
from tflgpu.errors.blame import listed
from tflgpu.integrations.ray import worker_options
from tflgpu.interpreter.callers import Pool
from tflgpu.ir.dtypes import Array

#: Upper ends of the histogram of seconds that requests take.
_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


class UnknownModelError(InputError):
    """A request names no model of the server."""


class ServedModel:
    """A model in a replica. Serve calls ``__del__`` where others need its place."""

    is_closed = False

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.types = {each.name: each.dtype for each in pool.inputs}

    def __del__(self) -> None:
        """Refuse what comes from now on, and end after the requests that are being served."""
        self.is_closed = True
        self.pool.close()


class TfliteServer:
    """Serves models by name.

        app = serve.deployment(TfliteServer, max_ongoing_requests=64).bind(
            {"digits": "digits.tflite", "photos": "photos.tflite"}, batch=8
        )

    Requests are gathered by `tflgpu.Pool`: those that come within ``deadline`` seconds run
    together, up to ``batch`` items. Each is checked before that, so that only the one that does not
    fit fails. A request names its model as Serve's multiplexed requests do; it goes to a replica
    that has the model open.
    """

    _is_ended = False

    def __init__(
        self,
        models: Mapping[str, str | bytes],
        *,
        max_models: int = 3,
        gpus: Sequence[int | str] | None = None,
        **options: Any,
    ) -> None:
        """Prepare a replica. It opens a model when it is first asked for.

        Args:
            models: Paths of `.tflite` files, or what is in them, by name.
            max_models: Models that are open at a time; the one that was not used for longest gives
                way to another.
            gpus: As `tflgpu.integrations.ray.worker_options` takes them.
            options: Of `tflgpu.Pool`, such as ``batch``, ``deadline`` and ``size``.

        Raises:
            ModelError, OptionError, DeviceError, UnsupportedError: as `tflgpu.Pool` and
                `tflgpu.integrations.ray.worker_options`.
        """
        self._models = dict(models)
        self._failure: DeviceError | None = None
        self._open: weakref.WeakSet[ServedModel] = weakref.WeakSet()
        self._failed = Counter("tflgpu_errors", "Requests that failed.", ("model", "error"))
        self._seconds = Histogram("tflgpu_seconds", "Of a request.", _SECONDS, ("model",))
        pool_options = worker_options(options, gpus)

        async def load(name: str) -> ServedModel:
            model = await asyncio.to_thread(Pool, self._models[name], **pool_options)
            loaded = ServedModel(model)
            self._open.add(loaded)
            return loaded

        self._loaded = serve.multiplexed(load, max_num_models_per_replica=max_models)

    async def predict(self, **arrays: npt.ArrayLike) -> dict[str, Array]:
        """Outputs by name for inputs by name: the method that a `DeploymentHandle` calls.

        Raises:
            UnknownModelError: no model of the request's name.
            InputError: what does not fit the model.
            DeviceError: the device failed; the replica is not healthy until a run succeeds.
        """
        name = self._name()
        begun = time.perf_counter()
        try:
            found = await self._run(name, arrays)
        except Exception as error:
            self._failed.inc(tags={"model": name, "error": type(error).__name__})
            if isinstance(error, DeviceError):
                self._failure = error
            raise
        self._failure = None
        self._seconds.observe(time.perf_counter() - begun, tags={"model": name})
        return found

    async def __call__(self, request: Request) -> JSONResponse:
        """A request by HTTP: JSON, nested lists by the names of inputs; the answer has them by the
        names of outputs. Status 400 for what does not fit, 404 for an unknown model, 503 for a
        queue that is full (``queue_limit``), 500 for a device that failed."""
        try:
            given = await request.json()
            types = (await self._loaded(self._name())).types
            arrays = {name: np.asarray(value, types.get(name)) for name, value in given.items()}
            found = await self.predict(**arrays)
        except UnknownModelError as error:
            return JSONResponse({"error": str(error)}, 404)
        except BusyError as error:
            return JSONResponse({"error": str(error)}, 503)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, TflgpuError) and not isinstance(error, InputError):
                raise  # such as one of opening the model
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({name: array.tolist() for name, array in found.items()})

    def check_health(self) -> None:
        """Serve asks this now and then, and replaces a replica for which it raises.

        Raises:
            DeviceError: the last run failed.
        """
        if self._failure is not None:
            raise self._failure

    def __del__(self) -> None:
        """Close all models: Serve calls this when the requests of a replica have been answered."""
        self._is_ended = True
        for model in list(getattr(self, "_open", ())):  # its options may have been refused
            model.__del__()

    def _name(self) -> str:
        name: str = serve.get_multiplexed_model_id()
        if not name and len(self._models) == 1:
            (name,) = self._models
        if name not in self._models:
            raise UnknownModelError(
                f"there is no model {name!r}; there are {listed(self._models)}, and a request says "
                "which by the header serve_multiplexed_model_id, or by "
                "handle.options(multiplexed_model_id=...)"
            )
        return name

    async def _run(self, name: str, arrays: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        while True:
            model: ServedModel = await self._loaded(name)
            if sorted(arrays) != sorted(model.types):
                raise InputError(f"inputs {listed(arrays)}; the model has {listed(model.types)}")
            try:
                return (await model.pool.run(*(arrays[name] for name in model.types))).asdict()
            except StateError:
                if self._is_ended or not model.is_closed:
                    raise
                # It gave way to another model between the two: it is opened again.
