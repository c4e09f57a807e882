"""Reductions over no elements, next to LiteRT: what the kernels begin with."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pytest.mark.parametrize("op", ["REDUCE_MAX", "REDUCE_MIN", "SUM", "REDUCE_PROD"])
def test_of_no_elements(op: str, dtype: DType) -> None:
    content = write_model(
        ModelSpec(
            [
                TensorSpec("x", (2, 0, 3), dtype),
                TensorSpec("axes", (1,), DType.I32, [1]),
                TensorSpec("y", (2, 1, 3), dtype),
            ],
            [OperatorSpec(op, {"keep_dims": True}, (0, 1), (2,))],
            (0,),
            (2,),
        )
    )
    found = []
    for module in (tflgpu, litert):
        interpreter = module.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        interpreter.invoke()
        found.append(interpreter.get_tensor(2))
    np.testing.assert_array_equal(*found)
