"""Reductions of no quantized numbers: what LiteRT's kernels begin with, as they store it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.ir.dtypes import DType, Quantization

from tests.small_models import small_model, tensor_of

TYPES = {
    DType.I8: Quantization((0.1,), (-7,)),
    DType.U8: Quantization((0.1,), (9,)),
    DType.I16: Quantization((0.001,), (0,)),
}


def _result(interpreter: Any) -> np.ndarray:
    interpreter.resize_tensor_input(0, (0, 3))
    interpreter.allocate_tensors()
    interpreter.invoke()
    return np.array(interpreter.get_tensor(2))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
@pytest.mark.parametrize("op", ["MEAN", "REDUCE_MAX", "REDUCE_MIN"])
def test_like_litert(op: str, dtype: DType) -> None:
    quant = TYPES[dtype]
    content = small_model(
        {
            "x": tensor_of((2, 3), dtype, quantization=quant),
            "axis": tensor_of((1,), DType.I32, [0]),
            "y": tensor_of((3,), dtype, quantization=quant),
        },
        (f"y = {op}(x, axis)", {"keep_dims": False}),
    )
    with (
        GpuDelegate(backend="cpu_ref") as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = _result(ours)
    np.testing.assert_array_equal(found, _result(LiteRT(model_content=content)))
