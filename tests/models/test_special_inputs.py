"""NaN in the inputs of real models: on every backend as LiteRT has it, and gone with the next
run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

MODELS = (
    "mobilenet_v1_0.25_224_float",
    "posenet_mobilenet_v1_100_257_f32",
    "mobilenet_v2_1.0_224_f32",
    "deeplabv3_257_mv_gpu",
    "ssd_mobilenet_v2_oidv4_fp16",
    "mp_selfie_segmentation_f16",
    "mp_hair_segmentation_customops",
    "mp_pose_landmark_full_f16",
)
BACKENDS = ("opencl", "vulkan", "wgpu", "cpu_ref")
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
#: The first model is for every backend. In the second a NaN pixel does not reach all results: for
#: one API and for the references. The others are where there is time (TFLGPU_TEST_EVERYTHING=1).
RUNS = [
    (backend, model)
    for backend in BACKENDS
    for model in MODELS
    if model == MODELS[0]
    or (model == MODELS[1] and (EVERYTHING or backend in ("opencl", "cpu_ref")))
    or (EVERYTHING and backend == BACKENDS[0])
]


def _run(interpreter: Any, image: Array) -> list[Array]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


@pytest.mark.parametrize(("backend", "model"), RUNS)
def test_nan_reaches_what_it_reaches_in_litert(
    model: str,
    backend: str,
    require_backend: Callable[[str], Any],
    model_path: Callable[[str], Path],
) -> None:
    require_backend(backend)
    path = model_path(model)
    reference = litert.Interpreter(str(path))
    reference.allocate_tensors()
    shape = reference.get_input_details()[0]["shape"]
    clean = np.random.default_rng(3).random(shape, np.float32)
    spoilt = np.full(shape, np.nan, np.float32)
    one_pixel = clean.copy()
    one_pixel[0, shape[1] // 2, shape[2] // 3] = np.nan
    with (
        tflgpu.GpuDelegate(backend=backend) as delegate,
        tflgpu.Interpreter(str(path), experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        before = _run(interpreter, clean)
        for image in (spoilt, one_pixel):
            found = _run(interpreter, image)
            for ours, theirs in zip(found, _run(reference, image), strict=True):
                np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        for was, now in zip(before, _run(interpreter, clean), strict=True):
            np.testing.assert_array_equal(was, now)
        assert all(np.isfinite(a).all() for a in before)
