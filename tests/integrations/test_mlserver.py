"""`tflgpu.integrations.mlserver` as MLServer calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.demo import load_digits

from tests.integrations.programs import run_program

mlserver = pytest.importorskip("mlserver", reason='needs pip install "tflgpu[mlserver]"')

from mlserver.codecs import NumpyCodec  # noqa: E402
from mlserver.errors import InferenceError  # noqa: E402
from mlserver.settings import ModelParameters, ModelSettings  # noqa: E402
from mlserver.types import InferenceRequest, RequestOutput  # noqa: E402
from tflgpu.integrations.mlserver import TfliteRuntime  # noqa: E402


def served(folder: Path, use: Callable[[TfliteRuntime], Any]) -> Any:
    """What a coroutine makes of a model that is loaded before and unloaded after it."""
    (folder / "model.tflite").write_bytes(load_digits().model)
    extra = {"backend": "cpu_ref", "batch": 4}
    parameters = ModelParameters(uri=str(folder), extra=extra)
    runtime = TfliteRuntime(
        ModelSettings(name="digits", implementation=TfliteRuntime, parameters=parameters)
    )

    async def whole() -> Any:
        assert await runtime.load()
        try:
            return await use(runtime)
        finally:
            assert await runtime.unload()

    return asyncio.run(whole())


def request(name: str, array: np.ndarray, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    return InferenceRequest(
        id="seven",
        inputs=[NumpyCodec.encode_input(name, array)],
        outputs=[RequestOutput(name=each) for each in outputs] or None,
    )


def test_a_request_is_answered_as_by_the_model(tmp_path: Path) -> None:
    images = load_digits().images[:6, 0]
    with tflgpu.Model(load_digits().model, backend="cpu_ref") as model:
        (given,), (made,), (wanted,) = model.input_names, model.output_names, model(images)

    async def use(runtime: TfliteRuntime) -> None:
        (described,), (result,) = runtime.inputs, runtime.outputs
        assert (described.name, described.shape) == (given, [-1, 8, 8, 1])
        assert (result.name, result.datatype, result.shape) == (made, "FP32", [-1, 10])
        answer = await runtime.predict(request(given, images, (made,)))
        assert (answer.id, answer.model_name) == ("seven", "digits")
        (output,) = answer.outputs
        np.testing.assert_allclose(NumpyCodec.decode_output(output), wanted, atol=1e-5)

    served(tmp_path, use)


def test_what_does_not_fit_is_an_inference_error(tmp_path: Path) -> None:
    images = load_digits().images[:1, 0]
    with tflgpu.Model(load_digits().model, backend="cpu_ref") as model:
        (given,) = model.input_names

    async def use(runtime: TfliteRuntime) -> None:
        with pytest.raises(InferenceError, match="the model has"):
            await runtime.predict(request("nonsense", images))
        with pytest.raises(InferenceError, match="the model has"):
            await runtime.predict(request(given, images, ("nonsense",)))
        with pytest.raises(InferenceError, match="shape"):
            await runtime.predict(request(given, images[:, :4]))

    served(tmp_path, use)


def test_the_page_program(tmp_path: Path) -> None:
    run_program("integrations.mlserver", tmp_path)
