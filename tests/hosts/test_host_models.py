"""Real models inside LiteRT: the same numbers as in tflgpu's own interpreter, and as LiteRT's CPU.

Drivers that compute on a CPU compile a model in up to a minute, so some models are run; all of them
where TFLGPU_TEST_EVERYTHING=1 is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array

from benchmarks.float64 import float64_outputs
from tests.hosts.host_models import host, litert

LIMIT = 1e-5
#: The range of numbers of each model's inputs.
FLOATS: dict[str, tuple[float, float]] = {
    "deeplabv3_257_mv_gpu": (-1, 1),
    "edsr_f32b5_fp32": (0, 255),
    "litert_torchaudio_conformer": (-1, 1),
    "mobilenet_v1_0.25_224_float": (-1, 1),
    "mobilenet_v1_1.0_224_f32": (-1, 1),
    "mobilenet_v2_1.0_224_f32": (-1, 1),
    "movie_review_nl_classifier": (0, 1),
    "mp_hair_segmentation_customops": (0, 1),
    "mp_pose_landmark_full_f16": (0, 1),
    "mp_selfie_segmentation_f16": (0, 1),
    "posenet_mobilenet_v1_100_257_f32": (-1, 1),
    "ssd_mobilenet_v2_oidv4_fp16": (-1, 1),
    "style_transfer_f16_384": (-1, 1),
    "tflm_mnist_lstm_fp32": (0, 1),
}
QUANTIZED = (
    "dtln_model_quant_1",
    "mobilenet_v1_1.0_224_quant_embedding",
    "mobilenet_v2_1.0_224_ptq_int8",
    "posenet_mobilenet_v1_100_257_int8_float_io",
    "ssd_mobilenet_v1_coco_quant",
)
SHAPES = {"edsr_f32b5_fp32": (1, 54, 97, 3)}
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
INPUTS = 5 if EVERYTHING else 2
QUICK = {
    ("opencl", "mobilenet_v1_0.25_224_float"),
    ("opencl", "movie_review_nl_classifier"),
    ("opencl", "tflm_mnist_lstm_fp32"),
    ("vulkan", "movie_review_nl_classifier"),
    ("wgpu", "tflm_mnist_lstm_fp32"),
}
RUNS = [
    (backend, model)
    for backend in ("opencl", "vulkan", "wgpu")
    for model in (*FLOATS, *QUANTIZED)
    if EVERYTHING or (backend, model) in QUICK
]


def _draw(rng: np.random.Generator, detail: Any, low: float, high: float) -> Array:
    shape, dtype = detail["shape"], np.dtype(detail["dtype"])
    if dtype.kind == "f":
        return rng.uniform(low, high, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)  # words are few: indices of a table
    top = 1000 if dtype.itemsize > 1 else limits.max + 1
    return rng.integers(max(limits.min, 0) if top == 1000 else limits.min, top, shape, dtype)


def _distance(got: Array, expected: Array) -> float:
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    difference = (got.astype(np.float64) - expected.astype(np.float64)).ravel()
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected.ravel()), 1e-30))


@pytest.mark.parametrize(("backend", "name"), RUNS, ids=str)
def test_a_model_in_litert(
    backend: str,
    name: str,
    model_path: Callable[[str], Path],
) -> None:
    path = str(model_path(name))
    with (
        tflgpu.GpuDelegate(backend=backend) as delegate,
        tflgpu.Interpreter(path, experimental_delegates=[delegate]) as own,
    ):
        inside, alone = host(path, delegate, allocate=False), litert.Interpreter(path)
        every = (inside, own, alone)
        for each in every:
            if name in SHAPES:
                each.resize_tensor_input(each.get_input_details()[0]["index"], SHAPES[name])
            each.allocate_tensors()
        assert delegate.reports[0].fully_delegated, str(delegate.reports[0])
        rng = np.random.default_rng(11)
        far: dict[str, list[list[float]]] = {}
        for _ in range(INPUTS):
            inputs = {}
            for detail in alone.get_input_details():
                index = detail["index"]
                inputs[index] = _draw(rng, detail, *FLOATS.get(name, (-1, 1)))
                for each in every:
                    each.set_tensor(index, inputs[index])
            for each in every:
                each.invoke()
            truth: dict[int, Array] = {}
            for detail in alone.get_output_details():
                index = detail["index"]
                got, ours, theirs = (e.get_tensor(index) for e in (inside, own, alone))
                np.testing.assert_array_equal(got, ours)
                if name in FLOATS and _distance(got, theirs) > LIMIT:
                    truth = truth or float64_outputs(Path(path), inputs)
                    far.setdefault(detail["name"], []).append(
                        [_distance(x, truth[index]) for x in (got, theirs)]
                    )
        del inside
    # As tests/models: where the two differ by more, ours is nearer to 64-bit arithmetic.
    for output, errors in far.items():
        ours, theirs = np.sqrt(np.mean(np.square(errors), axis=0))
        assert theirs > LIMIT / 2, (output, errors)
        assert ours <= theirs, (output, errors)
