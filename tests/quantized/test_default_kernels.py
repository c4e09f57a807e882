"""Operators on quantized tensors of unlike and of round scales: equal to what LiteRT's interpreter
gives by default, to the last bit. Round scales put every other result half way between two
steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

_S = (1, 5, 7, 3)
_RELU6 = {"fused_activation_function": 3}
_SLOPES = np.array([[[-128, 5, 77]]], np.int8)
_WIDE_SLOPES = np.array([[[-12345, 5000, 77]]], np.int16)
_PLANE = np.array([1, 2], np.int32)
_SIZE, _LARGE = np.array([9, 13], np.int32), (1, 9, 13, 3)
#: Operators by name, type of the result and scales, the result's last; shapes other than `_S` with
#: them; constants as arrays; options; version.
OPERATORS: tuple[tuple[str, DType, list[Any], Any, dict[str, Any], int], ...] = (
    ("ADD", DType.I8, [0.5, 0.25], 1.0, {}, 2),
    ("ADD", DType.U8, [0.05, (0.02, (3,))], 0.07, _RELU6, 2),
    ("SUB", DType.I8, [0.5, 0.25], 0.5, {}, 3),
    ("SUB", DType.U8, [0.013, 0.4], 0.3, {}, 3),
    ("MUL", DType.I8, [0.5, 0.25], 8.0, {}, 2),
    ("MUL", DType.U8, [0.02, (0.05, (3,))], 0.06, _RELU6, 2),
    ("SQUARED_DIFFERENCE", DType.I8, [0.03, 0.05], 0.4, {}, 2),
    ("PRELU", DType.I8, [0.25, (0.125, _SLOPES)], 0.5, {}, 1),
    ("PRELU", DType.I16, [1e-4, (0.007, _SLOPES)], 2e-4, {}, 1),
    # Each byte is taken for a slope.
    ("PRELU", DType.I16, [1e-4, (1e-4, _WIDE_SLOPES)], 2e-4, {}, 1),
    ("MEAN", DType.I8, [0.5, (np.array([2], np.int32),)], (1.0, (1, 5, 3)), {}, 2),
    ("MEAN", DType.U8, [0.1, (_PLANE,)], (0.05, (1, 1, 1, 3)), {"keep_dims": True}, 2),
    ("MEAN", DType.I16, [1e-4, (_PLANE,)], (0.3e-4, (1, 3)), {}, 3),
    ("MEAN", DType.I8, [0.1, (np.array([3], np.int32),)], (0.1, (1, 5, 7)), {}, 2),
    ("SUM", DType.I8, [0.5, (np.array([2], np.int32),)], (4.0, (1, 5, 3)), {}, 2),
    ("ABS", DType.I16, [1e-4], 0.97e-4, {}, 5),
    ("HARD_SWISH", DType.I8, [0.05], 0.025, {}, 1),
    ("HARD_SWISH", DType.I8, [(129 / 4096, (4, 128))], (1 / 64, (4, 128)), {}, 1),
    ("HARD_SWISH", DType.U8, [0.1], 0.1, {}, 1),
    ("BATCH_MATMUL", DType.I8, [(0.05, (2, 5, 7)), (0.02, (2, 7, 3))], (0.05, (2, 5, 3)), {}, 4),
    ("BATCH_MATMUL", DType.I16, [(1e-4, (2, 5, 7)), (1e-4, (2, 7, 3))], (1e-3, (2, 5, 3)), {}, 4),
    ("CONCATENATION", DType.I16, [1e-4, 3e-4], (1e-4, (1, 5, 7, 6)), {"axis": 3}, 3),
    ("QUANTIZE", DType.I8, [(None, _S)], 0.5, {}, 1),
    ("QUANTIZE", DType.U8, [(None, _S)], 0.25, {}, 1),
    ("RESIZE_BILINEAR", DType.I8, [0.1, (_SIZE,)], (0.1, _LARGE), {}, 3),
    ("RESIZE_BILINEAR", DType.U8, [0.1, (_SIZE,)], (0.1, _LARGE), {"half_pixel_centers": True}, 3),
    ("RESIZE_BILINEAR", DType.I16, [1e-4, (_SIZE,)], (1e-4, _LARGE), {"align_corners": True}, 4),
    ("RESIZE_BILINEAR", DType.I16, [1e-4, (_SIZE,)], (1e-4, _LARGE), {"half_pixel_centers": True},
    4),
)  # fmt: skip


def _quant(dtype: DType, scale: float, index: int) -> Quantization:
    zero = {DType.I8: -9, DType.U8: 119, DType.I16: 0}[dtype]
    return Quantization((float(np.float32(scale)),), (zero + 7 * index * (dtype is not DType.I16),))


def _models() -> tuple[bytes, list[int], list[str], list[TensorSpec]]:
    tensors: list[TensorSpec] = []
    operators, inputs, outputs = [], [], []

    def add(
        shape: tuple[int, ...], dtype: DType, scale: float, index: int, data: Any = None
    ) -> int:
        quant = _quant(dtype if data is None else DType.I16, scale, index)
        tensors.append(TensorSpec("", shape, dtype, data, quant))
        return len(tensors) - 1

    for op, dtype, given, result, fields, version in OPERATORS:
        read = []
        for index, operand in enumerate(given):
            scale, *rest = operand if isinstance(operand, tuple) else (operand, _S)
            read.append(len(tensors))
            if not rest:  # numbers without a scale
                tensors.append(TensorSpec("", scale.shape, DType.I32, scale))
            elif isinstance(rest[0], np.ndarray):
                add(rest[0].shape, DType.from_numpy(rest[0].dtype), scale, 0, rest[0])
            else:
                inputs.append(read[-1])
                if scale is None:
                    tensors.append(TensorSpec("", rest[0], DType.F32))
                else:
                    add(rest[0], dtype, scale, index)
        scale, shape = result if isinstance(result, tuple) else (result, _S)
        # Operators of one operand that move or mix numbers take those of its scale.
        outputs.append(add(shape, dtype, scale, 0 if op.startswith("RESIZE") else 2))
        operators.append(OperatorSpec(op, fields, read, [outputs[-1]], version=version))
    content = write_model(ModelSpec(tensors, operators, inputs, outputs))
    return content, inputs, [f"{o[0]} of {o[1].value}" for o in OPERATORS], tensors


@pytest.mark.parametrize("device", [0, 1])
def test_as_the_default_interpreter(device: int) -> None:
    rng = np.random.default_rng(5)
    content, inputs, names, tensors = _models()
    data: dict[int, Any] = {}
    for i in inputs:
        spec = tensors[i]
        if spec.dtype is DType.F32:
            data[i] = (rng.integers(-99, 99, spec.shape) / 4).astype(np.float32)
        else:
            info = np.iinfo(spec.dtype.numpy)
            data[i] = rng.integers(info.min, info.max + 1, spec.shape, spec.dtype.numpy)
    results = []
    with tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate:
        theirs = litert.Interpreter(model_content=content)
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for interpreter in (theirs, ours):
            interpreter.allocate_tensors()
            for index, array in data.items():
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            found = interpreter.get_output_details()
            results.append([np.array(interpreter.get_tensor(d["index"])) for d in found])
        ours.close()
    for name, want, got in zip(names, *results, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert len(np.unique(want)) > 2, name
