"""How LiteRT's kernels round by default where one number in a thousand shows it: many numbers, no
step off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def _tensor(
    dtype: DType, shape: tuple[int, ...], scale: float, zero_point: int = 0, data: Any = None
) -> TensorSpec:
    quantization = Quantization((float(np.float32(scale)),), (zero_point,))
    return TensorSpec("", shape, dtype, data, quantization)


def _axes(*axes: int) -> TensorSpec:
    return TensorSpec("", (len(axes),), DType.I32, np.array(axes, np.int32))


def _dense(
    bias: DType | None, scales: int = 1, said: DType = DType.F32
) -> tuple[str, list[TensorSpec], dict[str, Any], int]:
    rng = np.random.default_rng(2)
    each = tuple(float(np.float32(0.0077 + 1e-4 * i)) for i in range(scales))
    data = rng.integers(-127, 128, (29, 47), np.int8)
    tensors = [
        _tensor(DType.I16, (60, 47), 4.3e-5),
        TensorSpec("", (29, 47), DType.I8, data, Quantization(each, (0,) * scales, 0)),
    ]
    if bias is not None:
        offsets = rng.integers(-20000, 20000, 29).astype(bias.numpy)
        steps = tuple(float(np.float32(4.3e-5 * scale)) for scale in each)
        tensors.append(TensorSpec("", (29,), bias, offsets, Quantization(steps, (0,) * scales, 0)))
    tensors.append(_tensor(DType.I16, (60, 29), 2.1e-4))
    fields = {"quantized_bias_type": (bias if bias is DType.I32 else said).tflite}
    return "FULLY_CONNECTED", tensors, fields, 13


_BIG = (12, 15, 20)
#: Operator, its operands and at last the result, options, version.
CASES: dict[str, tuple[str, list[TensorSpec], dict[str, Any], int]] = {
    "product_i8": (
        "REDUCE_PROD",
        [_tensor(DType.I8, (9, 4, 7), 0.02, 9), _axes(1), _tensor(DType.I8, (9, 7), 0.03, -5)],
        {}, 2,
    ),
    "product_i16": (
        "REDUCE_PROD",
        [_tensor(DType.I16, (30, 3, 5), 1e-4), _axes(-1), _tensor(DType.I16, (30, 3), 0.005)],
        {}, 2,
    ),
    "dense_without_bias": _dense(None),
    "dense_with_32_bits": _dense(DType.I32),
    "dense_with_64_bits": _dense(DType.I64),
    # As the converter writes what has no bias.
    "dense_said_without_bias": _dense(None, 29, DType.I64),
    "dense_channels_with_64_bits": _dense(DType.I64, 29),
    **{
        op: (op, [_tensor(DType.I16, _BIG, s) for s in (8.8e-5, 6.2e-5, 9.2e-5)],
        {"pot_scale_int16": False}, version)
        for op, version in (("ADD", 3), ("SUB", 5))
    },
    "MUL": ("MUL", [_tensor(DType.I16, _BIG, s) for s in (9.3e-5, 4.2e-4, 3.6e-4)], {}, 6),
    "SOFTMAX": (
        "SOFTMAX", [_tensor(DType.I16, (400, 7), 2.4e-4), _tensor(DType.I16, (400, 7), 2.0**-15)],
        {"beta": 2.0}, 3,
    ),
    "unit": (
        "L2_NORMALIZATION",
        [_tensor(DType.U8, (400, 9), 0.02, 77), _tensor(DType.U8, (400, 9), 1 / 128, 128)], {}, 2,
    ),
    **{
        f"requantize_{b.value}": (
            "QUANTIZE", [_tensor(a, _BIG, s, x), _tensor(b, _BIG, t, y)], {}, 4,
        )
        for a, s, x, b, t, y in (
            (DType.I32, 1e-3, 0, DType.I8, 0.7, -20),
            (DType.I32, 1e-3, 0, DType.I16, 0.0031, 0),
        )
    },
}  # fmt: skip


def _run(interpreter: Any, data: dict[int, Array], output: int) -> Array:
    interpreter.allocate_tensors()
    for index, array in data.items():
        interpreter.set_tensor(index, array)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(output))


@pytest.mark.parametrize("id", CASES)
def test_no_step_off(id: str) -> None:
    op, tensors, fields, version = CASES[id]
    last = len(tensors) - 1
    inputs = [i for i, t in enumerate(tensors[:-1]) if t.data is None]
    operands = [*range(last), *([-1] if id.endswith("without_bias") else [])]
    operator = OperatorSpec(op, fields, operands, [last], version=version)
    content = write_model(ModelSpec(tensors, [operator], inputs, [last]))
    rng = np.random.default_rng(5)
    data: dict[int, Array] = {}
    for i in inputs:
        info = np.iinfo(tensors[i].dtype.numpy)
        drawn = rng.integers(max(info.min, -(10**5)), min(info.max, 10**5) + 1, tensors[i].shape)
        data[i] = drawn.astype(tensors[i].dtype.numpy)
    wanted = _run(litert.Interpreter(model_content=content), data, last)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref") as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(_run(ours, data, last), wanted)
    assert len(np.unique(wanted)) > 20
