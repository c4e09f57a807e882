"""Models with 16-bit activations, 8-bit weights and 64-bit biases, against LiteRT's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, side_by_side

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


def _depthwise(rng: np.random.Generator) -> ModelSpec:
    x = _activation((1, 5, 7, 3), 1e-4)
    weights = attrs.evolve(_weights(rng, 6, 3, 3, 1), shape=(1, 3, 3, 6))
    assert weights.data is not None and weights.quantization is not None
    weights = attrs.evolve(
        weights, data=weights.data.reshape(1, 3, 3, 6),
        quantization=attrs.evolve(weights.quantization, axis=3),
    )  # fmt: skip
    # A RELU6 that cuts, and no bias.
    tensors = [x, weights, _activation((1, 3, 4, 6), 2e-4)]
    fields = {"padding": 0, "stride_h": 2, "stride_w": 2, "depth_multiplier": 2,
              "fused_activation_function": 3}  # fmt: skip
    return ModelSpec(
        tensors, [OperatorSpec("DEPTHWISE_CONV_2D", fields, [0, 1], [2], version=5)], [0], [2]
    )


def _transposed(rng: np.random.Generator) -> ModelSpec:
    x, weights = _activation((1, 3, 5, 4), 1e-4), _weights(rng, 5, 3, 3, 4)
    size = TensorSpec("", (4,), DType.I32, np.array([1, 6, 10, 5], np.int32))
    tensors = [size, weights, x, _bias(rng, x, weights), _activation((1, 6, 10, 5), 2e-4)]
    fields = {"padding": 0, "stride_h": 2, "stride_w": 2}
    return ModelSpec(
        tensors, [OperatorSpec("TRANSPOSE_CONV", fields, [0, 1, 2, 3], [4], version=4)], [2], [4]
    )


def _add(rng: np.random.Generator) -> ModelSpec:
    tensors = [_activation((1, 5, 7, 3), s) for s in (1e-4, 3e-4, 2.5e-4)]
    return ModelSpec(tensors, [OperatorSpec("ADD", {}, [0, 1], [2], version=3)], [0, 1], [2])


@pytest.mark.parametrize("where", ["cpu", "opencl"])
@pytest.mark.parametrize("make", [_conv, _dense, _depthwise, _transposed, _add])
def test_as_litert(
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
        allocate_and_run(interpreter, data)
        results.append(interpreter.get_tensor(spec.outputs[0]).astype(np.int64))
    if delegates:
        # 16-bit numbers are converted on the CPU; the operator itself is on the device.
        assert ours.report.fully_delegated
    np.testing.assert_array_equal(results[0], results[1])
    assert len(np.unique(results[1])) > 5
    ours.close()
    for delegate in delegates:
        delegate.close()


_S = (1, 5, 7, 3)
_POOL = {"padding": 0, "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 3}
_FINE, _UNIT = 1e-4, 2.0**-15
#: Operators that LiteRT has for 16-bit data: shapes and scales of the operands (numbers are i32
#: constants), those of the result, options, version, and most steps of 65536 beside LiteRT.
OPERATORS: tuple[tuple[str, list[Any], Any, dict[str, Any], int, int], ...] = (
    ("SUB", [(_S, _FINE), (_S, 3e-4)], (_S, 2.5e-4), {}, 5, 0),
    ("MUL", [(_S, _FINE), (_S, 3e-4)], (_S, 2.5e-4), {}, 6, 0),
    ("DIV", [(_S, _FINE), (_S, 3e-4)], (_S, 2.5e-4), {}, 2, 1),
    ("MAXIMUM", [(_S, _FINE), ((3,), _FINE)], (_S, _FINE), {}, 4, 0),
    ("AVERAGE_POOL_2D", [(_S, _FINE)], ((1, 3, 4, 3), _FINE), _POOL, 3, 0),
    ("MAX_POOL_2D", [(_S, _FINE)], ((1, 3, 4, 3), _FINE), _POOL, 3, 0),
    ("LEAKY_RELU", [(_S, _FINE)], (_S, 0.7e-4), {"alpha": 0.2}, 2, 1),
    ("RELU", [(_S, 3e-4)], (_S, _FINE), {}, 3, 0),
    ("LOGISTIC", [(_S, 3e-4)], (_S, _UNIT), {}, 3, 1),
    ("TANH", [(_S, 2e-4)], (_S, _UNIT), {}, 3, 2),
    ("SOFTMAX", [((3, 5, 11), 1e-3)], ((3, 5, 11), _UNIT), {"beta": 1.0}, 3, 0),
    ("SOFTMAX", [((2, 600), 3e-4)], ((2, 600), _UNIT), {"beta": 0.5}, 3, 0),
    ("GELU", [(_S, 2e-4)], (_S, 2e-4), {}, 2, 1),
    ("MEAN", [(_S, _FINE), [1, 2]], ((1, 3), 0.5e-4), {}, 3, 1),
    ("BATCH_MATMUL", [((2, 3, 11), _FINE), ((2, 11, 5), 2e-4)], ((2, 3, 5), 1e-3), {}, 3, 0),
    ("PAD", [(_S, _FINE), [[0, 0], [1, 1], [2, 0], [0, 0]]], ((1, 7, 9, 3), _FINE), {}, 4, 0),
    ("TRANSPOSE", [(_S, _FINE), [0, 3, 1, 2]], ((1, 3, 5, 7), _FINE), {}, 5, 0),
    ("STRIDED_SLICE", [(_S, _FINE), [0, 0, 1, 0], [1, 5, 6, 3], [1, 2, 2, 1]],
     ((1, 3, 3, 3), _FINE), {}, 4, 0),
    ("PACK", [(_S, _FINE), (_S, _FINE)], ((2, *_S), _FINE), {"axis": 0, "values_count": 2}, 3, 0),
    ("QUANTIZE", [(_S, _FINE)], (_S, 1.7e-4), {}, 2, 0),
)  # fmt: skip


@pytest.mark.parametrize("device", [0, 1])
def test_other_operators(device: int) -> None:
    """A bias of 32 bits is read as one where the file says so."""
    rng = np.random.default_rng(7)
    x, weights = _activation((2, 29), _FINE), _weights(rng, 7, 29)
    long = _bias(rng, x, weights)
    assert long.data is not None
    short = TensorSpec("", (7,), DType.I32, np.asarray(long.data, np.int32), long.quantization)
    tensors = [x, weights, short, _activation((2, 7), 2e-4)]
    dense = OperatorSpec("FULLY_CONNECTED", {"quantized_bias_type": 2}, [0, 1, 2], [3], version=13)
    operators, inputs, outputs, most = [dense], [0], [3], [0]
    for op, operands, (shape, scale), fields, version, steps in OPERATORS:
        read = []
        for given in operands:
            read.append(len(tensors))
            if isinstance(given, tuple):
                tensors.append(_activation(*given))
                inputs.append(read[-1])
            else:
                numbers = np.asarray(given, np.int32)
                tensors.append(TensorSpec("", numbers.shape, DType.I32, numbers))
        operators.append(OperatorSpec(op, fields, read, [len(tensors)], version=version))
        outputs.append(len(tensors))
        most.append(steps)
        tensors.append(_activation(shape, scale))
    content = write_model(ModelSpec(tensors, operators, inputs, outputs))
    data = {i: rng.integers(-32768, 32768, tensors[i].shape, np.int16) for i in inputs}
    for array in data.values():
        array[array == 0] = 1  # LiteRT refuses to divide by 0
    resolver = litert.OpResolverType.BUILTIN_REF
    results = side_by_side(content, data, resolver, device=device, allow_fallback=False)
    for operator, limit, want, got in zip(operators, most, *results, strict=True):
        assert np.abs(got.astype(np.int32) - want).max() <= limit, operator.name
        assert len(np.unique(want)) >= 3, operator.name


def test_fully_connected_rounds_once() -> None:
    """Rounded twice, some of so many results are a step off."""
    rng = np.random.default_rng(5)
    x, weights = _activation((60, 37), 1e-4), _weights(rng, 40, 37)
    tensors = [x, weights, _bias(rng, x, weights), _activation((60, 40), 2e-5)]
    dense = OperatorSpec("FULLY_CONNECTED", {}, [0, 1, 2], [3], version=7)
    content = write_model(ModelSpec(tensors, [dense], [0], [3]))
    given = rng.integers(-3000, 3000, (60, 37)).astype(np.int16)
    (wanted,), (got,) = side_by_side(content, [given], allow_fallback=False)
    assert len(np.unique(wanted)) > 1000
    np.testing.assert_array_equal(got, wanted)
