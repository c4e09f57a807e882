"""Models with 16-bit activations, 8-bit weights and 64-bit biases, against LiteRT's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")


def _activation(shape: Sequence[int], scale: float) -> TensorSpec:
    return TensorSpec("", shape, DType.I16, None, Quantization((scale,), (0,)))


def _weights(rng: np.random.Generator, *shape: int) -> TensorSpec:
    scales = tuple(float(s) for s in rng.uniform(0.001, 0.01, shape[0]).astype(np.float32))
    data = rng.integers(-127, 128, shape, np.int8)
    return TensorSpec("", shape, DType.I8, data, Quantization(scales, (0,) * shape[0], 0))


def _bias(rng: np.random.Generator, x: TensorSpec, weights: TensorSpec) -> TensorSpec:
    assert x.quantization is not None and weights.quantization is not None
    scales = tuple(x.quantization.scale[0] * s for s in weights.quantization.scale)
    data = rng.integers(-(10**5), 10**5, len(scales), np.int64)
    return TensorSpec("", (len(scales),), DType.I64, data, Quantization(scales, (0,) * len(scales)))


def _conv(rng: np.random.Generator) -> ModelSpec:
    x, weights = _activation((1, 5, 7, 3), 1e-4), _weights(rng, 6, 3, 3, 3)
    tensors = [x, weights, _bias(rng, x, weights), _activation((1, 5, 7, 6), 2e-4)]
    fields = {"padding": 0, "stride_h": 1, "stride_w": 1}
    return ModelSpec(
        tensors, [OperatorSpec("CONV_2D", fields, [0, 1, 2], [3], version=4)], [0], [3]
    )


def _dense(rng: np.random.Generator) -> ModelSpec:
    x, weights = _activation((2, 29), 1e-4), _weights(rng, 7, 29)
    tensors = [x, weights, _bias(rng, x, weights), _activation((2, 7), 2e-4)]
    return ModelSpec(
        tensors, [OperatorSpec("FULLY_CONNECTED", {}, [0, 1, 2], [3], version=7)], [0], [3]
    )


def _add(rng: np.random.Generator) -> ModelSpec:
    tensors = [_activation((1, 5, 7, 3), s) for s in (1e-4, 3e-4, 2.5e-4)]
    return ModelSpec(tensors, [OperatorSpec("ADD", {}, [0, 1], [2], version=3)], [0, 1], [2])


@pytest.mark.parametrize("where", ["cpu", "opencl"])
@pytest.mark.parametrize("make", [_conv, _dense, _add])
def test_within_a_step(
    make: Callable[[np.random.Generator], ModelSpec],
    where: str,
    require_backend: Callable[[str], Any],
) -> None:
    rng = np.random.default_rng(4)
    spec = make(rng)
    content = write_model(spec)
    resolver = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    theirs = litert.Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    delegates = []
    if where != "cpu":
        require_backend(where)
        delegates = [tflgpu.GpuDelegate(backend=where)]
    ours = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
    results: list[Array] = []
    data = {i: rng.integers(-32768, 32768, spec.tensors[i].shape, np.int16) for i in spec.inputs}
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        for index, array in data.items():
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        results.append(interpreter.get_tensor(spec.outputs[0]).astype(np.int64))
    if delegates:
        # 16-bit numbers are converted on the CPU; the operator itself is on the device.
        assert ours.delegation_report().fully_delegated
    assert np.abs(results[0] - results[1]).max() <= 1
    assert len(np.unique(results[1])) > 5
    ours.close()
    for delegate in delegates:
        delegate.close()
