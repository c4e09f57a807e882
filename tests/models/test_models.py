"""Real models, wholly on a device, against LiteRT's CPU interpreter on the same inputs.

The limits are relative L2 errors over each output: 1e-5 in F32, 1e-2 with 16-bit storage. A few
outputs cannot be compared that closely, because LiteRT's own f32 result is further than that
from what 64-bit arithmetic gives (networks that cancel large numbers). For those, and only
where that is shown for the very inputs at hand, ours must be nearer to the 64-bit result than
LiteRT's is.

In F16 a limit would say more of a model than of us. There our error is held against that of 64-bit
arithmetic which rounds every tensor to f16.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array

from benchmarks.float64 import float64_outputs
from tests.running import allocated, outputs, set_and_run

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")


@attrs.frozen
class Model:
    """A model of the tests: the range of its inputs, and a size where its own is too slow."""

    name: str
    low: float = -1.0
    high: float = 1.0
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.name


MODELS = (
    Model("deeplabv3_257_mv_gpu"),
    Model("mobilenet_v1_0.25_224_float"),
    Model("mobilenet_v1_1.0_224_f32"),
    Model("mobilenet_v2_1.0_224_f32"),
    Model("posenet_mobilenet_v1_100_257_f32"),
    Model("ssd_mobilenet_v2_oidv4_fp16"),
    Model("mp_pose_landmark_full_f16", low=0.0),
    Model("style_transfer_f16_384"),
    # Takes pixels; a full-HD network whose convolutions work on any size, so a crop is run.
    Model("edsr_f32b5_fp32", low=0.0, high=255.0, shape=(1, 54, 97, 3)),
)
LIMITS = {"f32": 1e-5, "f32_f16": 1e-2}

#: Where devices compute on the CPU, a test takes up to half a minute. So each model but the slowest
#: is run once, the smallest by tests/hosts too, and OpenCL has most; TFLGPU_TEST_EVERYTHING=1 runs
#: all, on a machine with a GPU.
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
QUICK = {
    ("opencl", "f32", "mobilenet_v2_1.0_224_f32"),
    ("opencl", "f32", "posenet_mobilenet_v1_100_257_f32"),
    ("opencl", "f32", "ssd_mobilenet_v2_oidv4_fp16"),
    ("opencl", "f32", "style_transfer_f16_384"),
    ("opencl", "f32_f16", "deeplabv3_257_mv_gpu"),
    ("vulkan", "f32_f16", "mobilenet_v1_0.25_224_float"),
    ("wgpu", "f32", "mobilenet_v1_1.0_224_f32"),
    ("wgpu", "f32", "edsr_f32b5_fp32"),
}
RUNS = [
    (backend, precision, model)
    for backend in ("opencl", "vulkan", "wgpu")
    for precision in LIMITS
    for model in MODELS
    if EVERYTHING or (backend, precision, model.name) in QUICK
]
#: 64-bit arithmetic for the reference takes most of the time here.
F16_QUICK = {("vulkan", "mobilenet_v1_0.25_224_float")}
F16_RUNS = [
    (backend, model)
    for backend in ("opencl", "vulkan", "wgpu")
    for model in MODELS
    if EVERYTHING or (backend, model.name) in F16_QUICK
]
INPUTS = 5 if EVERYTHING else 2
F16_INPUTS = 3 if EVERYTHING else 2
#: Which way roundings go is the same for every input of a model, and a softmax that cancels most of
#: their sum in the one case may not in the other.
F16_FACTOR = 3.0


def _relative_l2(got: Array, expected: Array) -> float:
    assert np.isfinite(got).all()
    difference = (got.astype(np.float64) - expected).ravel()
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected.ravel()), 1e-30))


@pytest.mark.parametrize(("backend", "precision", "model"), RUNS, ids=str)
def test_model_runs_wholly_on_the_device(
    model: Model,
    backend: str,
    precision: str,
    model_path: Callable[[str], Path],
) -> None:
    path = model_path(model.name)
    reference = litert.Interpreter(str(path))
    delegate = tflgpu.GpuDelegate(backend=backend, precision=precision)
    interpreter = tflgpu.Interpreter(str(path), experimental_delegates=[delegate])
    both = (reference, interpreter)
    for each in both:
        if model.shape is not None:
            each.resize_tensor_input(each.get_input_details()[0]["index"], model.shape)
        each.allocate_tensors()
    report = interpreter.report
    assert not report.refusals, str(report)
    assert report.delegated_nodes == report.total_nodes > 0
    assert report.precision == precision
    rng = np.random.default_rng(17)
    runs = [_run(path, model, both, rng, LIMITS[precision]) for _ in range(INPUTS)]
    for name in runs[0]:
        _judge(name, [run[name] for run in runs], LIMITS[precision])
    interpreter.close()
    delegate.close()


@pytest.mark.parametrize(("backend", "model"), F16_RUNS, ids=str)
def test_f16_costs_what_its_storage_costs(
    model: Model,
    backend: str,
    model_path: Callable[[str], Path],
) -> None:
    path = model_path(model.name)
    with (
        tflgpu.GpuDelegate(backend=backend, precision="f16") as delegate,
        tflgpu.Interpreter(str(path), experimental_delegates=[delegate]) as interpreter,
    ):
        if model.shape is not None:
            first = interpreter.get_input_details()[0]["index"]
            interpreter.resize_tensor_input(first, model.shape)
        interpreter.allocate_tensors()
        report = interpreter.report
        if report.precision != "f16":
            pytest.skip(f"{report.device} does not compute in f16")
        assert report.delegated_nodes == report.total_nodes > 0
        rng = np.random.default_rng(17)
        ours: dict[str, list[float]] = {}
        storage: dict[str, list[float]] = {}
        for _ in range(F16_INPUTS):
            inputs = {}
            for detail in interpreter.get_input_details():
                data = rng.uniform(model.low, model.high, detail["shape"]).astype(np.float32)
                inputs[detail["index"]] = data
                interpreter.set_tensor(detail["index"], data)
            interpreter.invoke()
            truth = float64_outputs(path, inputs)
            rounded = float64_outputs(path, inputs, stored_as=np.float16)
            for detail in interpreter.get_output_details():
                name, index = detail["name"], detail["index"]
                got = interpreter.get_tensor(index)
                ours.setdefault(name, []).append(_relative_l2(got, truth[index]))
                storage.setdefault(name, []).append(_relative_l2(rounded[index], truth[index]))
    for name, found in ours.items():
        error, expected = (float(np.sqrt(np.mean(np.square(e)))) for e in (found, storage[name]))
        assert error <= F16_FACTOR * expected, (
            f"{name}: {error:.2e} from 64-bit arithmetic (root mean square of {F16_INPUTS} "
            f"inputs), where rounding every tensor to f16 gives {expected:.2e}"
        )


@attrs.frozen
class Errors:
    """Relative L2 errors of one output: ours from LiteRT's, and both from 64-bit arithmetic
    (None where ours is close enough to LiteRT's anyway)."""

    between: float
    ours: float | None = None
    theirs: float | None = None


def _run(
    path: Path, model: Model, both: tuple[Any, Any], rng: np.random.Generator, limit: float
) -> dict[str, Errors]:
    reference, interpreter = both
    inputs = {}
    for detail in reference.get_input_details():
        data = rng.uniform(model.low, model.high, detail["shape"]).astype(np.float32)
        inputs[detail["index"]] = data
        for each in both:
            each.set_tensor(detail["index"], data)
    for each in both:
        each.invoke()
    truth: dict[int, Array] = {}
    found = {}
    for detail in reference.get_output_details():
        index = detail["index"]
        expected, got = reference.get_tensor(index), interpreter.get_tensor(index)
        errors = Errors(_relative_l2(got, expected))
        if errors.between > limit:
            truth = truth or float64_outputs(path, inputs)
            ours, theirs = (_relative_l2(x, truth[index]) for x in (got, expected))
            errors = attrs.evolve(errors, ours=ours, theirs=theirs)
        found[detail["name"]] = errors
    return found


def _judge(name: str, runs: list[Errors], limit: float) -> None:
    far = [e for e in runs if e.ours is not None and e.theirs is not None]
    if not far:
        return
    ours, theirs = (
        float(np.sqrt(np.mean(np.square([getattr(e, who) for e in far]))))
        for who in ("ours", "theirs")
    )
    message = (
        f"{name}: up to {max(e.between for e in far):.2e} from LiteRT; from 64-bit arithmetic "
        f"we are {ours:.2e} (root mean square of {len(far)} inputs), LiteRT is {theirs:.2e}"
    )
    # Where LiteRT itself is not within the limit of the truth, ours must be nearer than it.
    assert theirs > limit / 2, message
    assert ours <= theirs, message


# NaN in the inputs of real models: on every backend as LiteRT has it, and gone with the next run.


SPECIAL_MODELS = (
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
#: The first model is for every backend. In the second a NaN pixel does not reach all results: for
#: one API and for the references. The others are where there is time (TFLGPU_TEST_EVERYTHING=1).
SPECIAL_RUNS = [
    (backend, model)
    for backend in BACKENDS
    for model in SPECIAL_MODELS
    if model == SPECIAL_MODELS[0]
    or (model == SPECIAL_MODELS[1] and (EVERYTHING or backend in ("opencl", "cpu_ref")))
    or (EVERYTHING and backend == BACKENDS[0])
]


def _run_special(interpreter: Any, image: Array) -> list[Array]:
    set_and_run(interpreter, {interpreter.get_input_details()[0]["index"]: image})
    return outputs(interpreter)


@pytest.mark.parametrize(("backend", "model"), SPECIAL_RUNS)
def test_nan_reaches_what_it_reaches_in_litert(
    model: str,
    backend: str,
    model_path: Callable[[str], Path],
) -> None:
    path = model_path(model)
    reference = allocated(litert.Interpreter(str(path)))
    shape = reference.get_input_details()[0]["shape"]
    clean = np.random.default_rng(3).random(shape, np.float32)
    spoilt = np.full(shape, np.nan, np.float32)
    one_pixel = clean.copy()
    one_pixel[0, shape[1] // 2, shape[2] // 3] = np.nan
    with (
        tflgpu.GpuDelegate(backend=backend) as delegate,
        allocated(tflgpu.Interpreter(str(path), experimental_delegates=[delegate])) as interpreter,
    ):
        before = _run_special(interpreter, clean)
        for image in (spoilt, one_pixel):
            found = _run_special(interpreter, image)
            for ours, theirs in zip(found, _run_special(reference, image), strict=True):
                np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        for was, now in zip(before, _run_special(interpreter, clean), strict=True):
            np.testing.assert_array_equal(was, now)
        assert all(np.isfinite(a).all() for a in before)


# Real models in batches of 2, on the CPU, against two runs of one; and why some are refused.


pytest.importorskip("ai_edge_litert", reason="pip install tflgpu[litert]")

#: Of every kind, those that are quick: floats, 8 bits, dynamic range with slices and UNPACK of axes
#: of 1, f16 weights, indices, several outputs, a SQUEEZE.
BATCHES_MODELS = (
    "mobilenet_v1_0.25_224_float", "mobilenet_v2_1.0_224_ptq_int8", "dtln_model_quant_1",
    "mp_selfie_segmentation_f16", "movie_review_nl_classifier",
    "posenet_mobilenet_v1_100_257_int8_float_io",
)  # fmt: skip
REFUSED = {
    "litert_torchaudio_conformer": r"input tensor 0 .* shape \[335, 10, 80\]",
    "ssd_mobilenet_v1_coco_quant": "#63 TFLite_Detection_PostProcess: it finds the boxes",
    "tflm_mnist_lstm_fp32": "tensor 2 .* is state",
}


@pytest.mark.parametrize("name", BATCHES_MODELS)
def test_two_at_once_are_as_two(name: str, model_path: Callable[[str], Path]) -> None:
    path = model_path(name)
    rng = np.random.default_rng(0)
    with (
        tflgpu.Interpreter(path, experimental_delegates=[], batch=2) as two,
        tflgpu.Interpreter(path, experimental_delegates=[]) as one,
    ):
        two.allocate_tensors()
        one.allocate_tensors()
        arrays = []
        for detail in two.get_input_details():
            kind = np.dtype(detail["dtype"]).kind
            drawn = (
                rng.random(detail["shape"]) if kind == "f" else rng.integers(0, 99, detail["shape"])
            )
            arrays.append(drawn.astype(detail["dtype"]))
            two.set_tensor(detail["index"], arrays[-1])
        two.invoke()
        found = [two.get_tensor(d["index"]) for d in two.get_output_details()]
        alone = []
        for n in range(2):
            for detail, array in zip(one.get_input_details(), arrays, strict=True):
                one.set_tensor(detail["index"], array[n : n + 1])
            one.invoke()
            alone.append([one.get_tensor(d["index"]) for d in one.get_output_details()])
        wanted = map(np.concatenate, zip(*alone, strict=True))
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.shape == theirs.shape
            assert not np.array_equal(mine[0], mine[1])
            if mine.dtype == np.float32:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
            else:
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_others_say_why_not(name: str, model_path: Callable[[str], Path]) -> None:
    with pytest.raises(tflgpu.UnsupportedError, match=REFUSED[name]):
        tflgpu.Interpreter(model_path(name), batch=2)
