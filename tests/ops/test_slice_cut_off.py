"""SLICE whose box lies outside: what of it is inside, where XNNPACK takes the type, else an
error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import AllocationError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

TYPES = {DType.F32: None, DType.I8: Quantization((0.1,), (3,)), DType.I32: None,
         DType.I16: Quantization((0.1,), (0,))}  # fmt: skip
BOXES = [(0, 99), (1, 99), (3, 2), (4, 1), (7, 2), (1, 2)]


def _result(interpreter: Any, dtype: DType) -> np.ndarray | None:
    try:
        # Cut to fewer rows than the file has, as by a run-time shape.
        interpreter.resize_tensor_input(0, (4, 3))
        interpreter.allocate_tensors()
    except (RuntimeError, AllocationError):
        return None
    interpreter.set_tensor(0, np.arange(12).reshape(4, 3).astype(dtype.numpy))
    interpreter.invoke()
    return np.array(interpreter.get_tensor(3))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
def test_like_litert(dtype: DType) -> None:
    refused = 0
    for begin, size in BOXES:
        tensors = [
            TensorSpec("x", (200, 3), dtype, quantization=TYPES[dtype]),
            TensorSpec("begin", (2,), DType.I32, [begin, 1]), TensorSpec("size", (2,), DType.I32,
            [size, 2]),
            TensorSpec("y", (size, 2), dtype, quantization=TYPES[dtype]),
        ]  # fmt: skip
        content = write_model(
            ModelSpec(tensors, [OperatorSpec("SLICE", {}, (0, 1, 2), (3,))], (0,), (3,))
        )
        with (
            GpuDelegate(backend="cpu_ref") as delegate,
            Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
        ):
            found, wanted = _result(ours, dtype), _result(LiteRT(model_content=content), dtype)
        assert (found is None) == (wanted is None), (begin, size)
        refused += found is None
        if found is not None and wanted is not None:
            np.testing.assert_array_equal(found, wanted)
    assert refused == (0 if dtype in (DType.F32, DType.I8) else 5)
