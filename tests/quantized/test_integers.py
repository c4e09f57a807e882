"""Integer numerics: bit for bit what TFLite's reference kernels compute, on every backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.quantized.quantized_cases import CASES, build
from tests.running import allocate_and_run, outputs

pytestmark = pytest.mark.usefixtures("pocl_without_its_optimiser")
litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

#: That have integer kernels.
OPS = ("ADD", "CONV_2D", "DEPTHWISE_CONV_2D")
DEVICES = (("cpu_ref", 0), ("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0))


@pytest.fixture(params=DEVICES, ids=lambda d: f"{d[0]}{d[1]}")
def delegate(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Any:
    backend, index = request.param
    require_backend(backend)
    with tflgpu.GpuDelegate(
        backend=backend, device=index, quantized_numerics="integer", allow_fallback=False
    ) as opened:
        yield opened


def run(interpreter: Any, inputs: Sequence[Array]) -> list[Array]:
    allocate_and_run(interpreter, inputs)
    return outputs(interpreter)


def reference(content: bytes, inputs: Sequence[Array]) -> list[Array]:
    resolver = litert.OpResolverType.BUILTIN_REF
    return run(litert.Interpreter(model_content=content, experimental_op_resolver_type=resolver),
               inputs)  # fmt: skip


def scale(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.float32(np.exp(rng.uniform(low, high))))


def quantized(
    name: str, shape: tuple[int, ...], step: float, zero: int, dtype: DType = DType.I8
) -> TensorSpec:
    return TensorSpec(name, shape, dtype, None, Quantization((float(np.float32(step)),), (zero,)))


SHAPES = (((256, 1), (1, 251)), ((1, 251), (256, 1)), ((64, 61), (64, 61)), ((61,), (64, 61)),
          ((64, 61), (61,)), ((2, 5, 1, 7), (1, 9, 7)))  # fmt: skip


def together(models: Sequence[tuple[ModelSpec, list[Array]]]) -> tuple[bytes, list[Array]]:
    """One model of models of an operator each, which have nothing to do with one another: it is
    compiled at once, where each alone would take a driver a while."""
    tensors: list[TensorSpec] = []
    operators: list[OperatorSpec] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for spec, _ in models:
        first = len(tensors)
        (operator,) = spec.operators
        moved = {k: [first + i for i in getattr(operator, k)] for k in ("inputs", "outputs")}
        operators.append(attrs.evolve(operator, **moved))
        tensors += spec.tensors
        inputs += [first + i for i in spec.inputs]
        outputs += [first + i for i in spec.outputs]
    content = write_model(ModelSpec(tensors, operators, inputs, outputs))
    return content, [array for _, arrays in models for array in arrays]


def additions(seed: int, dtype: DType) -> list[tuple[ModelSpec, list[Array]]]:
    """ADD with every fused activation, operands that broadcast either way, and random scales."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype.numpy)
    made = []
    for activation in range(4) if dtype is DType.I8 else (0, 1):
        for left, right in SHAPES:
            a, b = scale(rng, -4, 2), scale(rng, -4, 2)
            # From a result that clamps half of the sums to one that has few steps.
            result = max(a, b) * float(np.exp(rng.uniform(-1, 2)))
            zeros = rng.integers(info.min, info.max, 3, endpoint=True)
            shapes = (left, right, np.broadcast_shapes(left, right))
            tensors = [
                quantized(name, shape, step, int(zero), dtype)
                for name, shape, step, zero in zip(
                    ("a", "b", "sum"), shapes, (a, b, result), zeros, strict=True
                )
            ]
            fields = {"fused_activation_function": activation}
            operator = OperatorSpec("ADD", fields, [0, 1], [2], version=2)
            inputs = [
                rng.integers(info.min, info.max, s, dtype.numpy, endpoint=True) for s in shapes[:2]
            ]
            made.append((ModelSpec(tensors, [operator], [0, 1], [2]), inputs))
    return made


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8], ids=["i8", "u8"])
def test_add(delegate: Any, dtype: DType) -> None:
    models = additions(7, dtype)
    content, inputs = together(models)
    interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
    found, wanted = run(interpreter, inputs), reference(content, inputs)
    report = interpreter.report
    interpreter.close()
    assert report.integers == tuple(range(len(models))), str(report)
    assert report.fully_delegated
    assert f"{len(models)} of them in integers" in report.summary
    assert len(found) == len(wanted) == len(models)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    varied = sum(len(np.unique(want)) > 20 for want in wanted)
    assert varied >= len(SHAPES), "most of the results say nothing"


def convolutions(seed: int, count: int) -> list[tuple[ModelSpec, list[Array]]]:
    """CONV_2D of random sizes, with a scale a channel or one for all."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        height, width, inner, outer = (int(n) for n in rng.integers(1, 14, 4))
        rows, columns = (min(s, int(rng.integers(1, 4))) for s in (height, width))
        fields = {
            "padding": int(rng.integers(0, 2)), "fused_activation_function": number % 4,
            "stride_h": int(rng.integers(1, 3)), "stride_w": int(rng.integers(1, 3)),
            "dilation_h_factor": 1 + int(height > 2 * rows),
            "dilation_w_factor": 1 + int(width > 2 * columns),
        }  # fmt: skip
        sizes = []
        for size, taps, axis in ((height, rows, "h"), (width, columns, "w")):
            span = (taps - 1) * fields[f"dilation_{axis}_factor"] + 1
            whole = size if fields["padding"] == 0 else size - span + 1
            sizes.append(-(-whole // fields[f"stride_{axis}"]))
        x = scale(rng, -4, 1)
        steps = np.exp(rng.uniform(-6, -2, outer if number % 3 else 1)).astype(np.float32)
        weights = rng.integers(-127, 128, (outer, rows, columns, inner), np.int8)
        bias = rng.integers(-5000, 5000, outer).astype(np.int32)
        # Small enough for some factors to be above 1.
        result = x * float(steps.mean()) * 70 * (rows * columns * inner) ** 0.5
        result *= (1, 1, 1e-2, 1e-4)[number % 4]
        zeros = (0,) * len(steps)
        filters = Quantization(tuple(map(float, steps)), zeros, 0)
        offsets = Quantization(tuple(float(np.float32(x) * s) for s in steps), zeros, 0)
        image = (2, height, width, inner)
        tensors = [
            quantized("x", image, x, int(rng.integers(-128, 128))),
            TensorSpec("filter", weights.shape, DType.I8, weights, filters),
            TensorSpec("bias", bias.shape, DType.I32, bias, offsets),
            quantized("y", (2, *sizes, outer), result, int(rng.integers(-128, 128))),
        ]
        operator = OperatorSpec("CONV_2D", fields, [0, 1, 2], [3], version=3)
        model = ModelSpec(tensors, [operator], [0], [3])
        made.append((model, [rng.integers(-128, 128, image, np.int8)]))
    return made


def test_conv_2d(delegate: Any) -> None:
    models = convolutions(3, 24)
    content, inputs = together(models)
    interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
    found, wanted = run(interpreter, inputs), reference(content, inputs)
    report = interpreter.report
    interpreter.close()
    assert len(report.integers) + len(report.in_floats) == len(found) == len(wanted) == len(models)
    for left in report.in_floats:
        assert left.reason == "CONV_2D: its sums may need more than 32 bits"
    taken = len(report.integers)
    varied = 0
    for number in report.integers:
        varied += len(np.unique(wanted[number])) > 20
        np.testing.assert_array_equal(found[number], wanted[number])
    assert taken >= 18
    assert varied >= 6, "most of the results say nothing"


@pytest.mark.parametrize("case", [c for c in CASES if c.op in OPS],
                         ids=lambda c: c.id)  # fmt: skip
def test_as_a_converter_writes_it(case: Any, delegate: Any) -> None:
    built = build(case, DType.I8, seed=2)
    inputs = list(built.inputs.values())
    interpreter = tflgpu.Interpreter(model_content=built.content, experimental_delegates=[delegate])
    got, want = run(interpreter, inputs), reference(built.content, inputs)
    assert interpreter.report.integers == (0,)
    interpreter.close()
    np.testing.assert_array_equal(got[0], want[0])


#: Models, and by how many steps their results may be off: MobileNet has a MEAN and a SOFTMAX, which
#: have no integer kernels, and of PoseNet every operator has one.
MODELS = (
    ("mobilenet_v2_1.0_224_ptq_int8", 63, 1),
    ("posenet_mobilenet_v1_100_257_int8_float_io", 31, 0),
)
#: PoCL compiles MobileNet for half a minute: where there is time (TFLGPU_TEST_EVERYTHING=1).
RUNS = MODELS if os.environ.get("TFLGPU_TEST_EVERYTHING") else MODELS[1:]


@pytest.mark.parametrize(("name", "integers", "most"), RUNS, ids=[m[0] for m in RUNS])
@pytest.mark.needs("opencl")
def test_a_real_model(
    name: str, integers: int, most: int, model_path: Callable[[str], Path]
) -> None:
    content = model_path(name).read_bytes()
    rng = np.random.default_rng(4)
    with tflgpu.GpuDelegate(
        backend="opencl", quantized_numerics="integer", allow_fallback=False
    ) as delegate:
        interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        inputs = []
        for detail in interpreter.get_input_details():
            real = rng.integers(0, 256, detail["shape"])
            is_float = np.dtype(detail["dtype"]).kind == "f"
            inputs.append((real / 128 - 1 if is_float else real).astype(detail["dtype"]))
        found = run(interpreter, inputs)
        report = interpreter.report
        interpreter.close()
    assert len(report.integers) == integers
    for got, want in zip(found, reference(content, inputs), strict=True):
        assert len(np.unique(want)) > 3
        assert np.abs(got.astype(np.float64) - want).max() <= most


def test_without_a_device_the_references_compute_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tflgpu.devices.choose import Choice
    from tflgpu.runtime import opened_device as module

    nothing = lambda *given, **only: (Choice(None, ("a test says so",)), None)  # noqa: E731
    monkeypatch.setattr(module, "open_best", nothing)
    delegate = tflgpu.GpuDelegate(quantized_numerics="integer")
    content, inputs = together(additions(9, DType.I8)[1:2])
    interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
    (got,) = run(interpreter, inputs)
    assert interpreter.report.integers == (0,)
    np.testing.assert_array_equal(got, reference(content, inputs)[0])
