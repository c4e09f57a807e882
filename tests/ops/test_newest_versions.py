"""What the newest versions of old ops add: 16-bit floats, and whole numbers of 16 bits. (Quantized
tensors: see tests/quantized.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F16, I16 = DType.F16, DType.I16
#: Op, version, operands, their type and the result's.
CASES = [
    ("ADD", 6, 2, F16, F16), ("MUL", 8, 2, F16, F16), ("GELU", 3, 1, F16, F16),
    ("EQUAL", 5, 2, I16, DType.BOOL),
]  # fmt: skip


@pytest.mark.parametrize(("name", "version", "count", "dtype", "made"), CASES)
@pytest.mark.parametrize("side", ["cpu_ref", "litert"])
def test_as_litert(
    name: str, version: int, count: int, dtype: DType, made: DType, side: str
) -> None:
    assert builtin_ops()[name].file.max_version == version
    shape = (2, 3, 7)
    tensors = [TensorSpec(f"x{i}", shape, dtype) for i in range(count)]
    operator = OperatorSpec(name, {}, list(range(count)), [count], version=version)
    content = write_model(
        ModelSpec([*tensors, TensorSpec("y", shape, made)], [operator], list(range(count)), [count])
    )
    rng = np.random.default_rng(5)
    xs = [rng.uniform(-3, 3, shape).astype(dtype.numpy) for _ in range(count)]

    def run(interpreter: Any) -> Any:
        interpreter.allocate_tensors()
        for i, x in enumerate(xs):
            interpreter.set_tensor(i, x)
        interpreter.invoke()
        return interpreter.get_tensor(count)

    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend=side
    ) as ours:
        found = run(ours)
    wanted = run(litert.Interpreter(model_content=content))
    assert found.dtype == wanted.dtype == made.numpy
    # One unit of 16 bits where a function is approximated.
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3 * (name == "GELU"),
        atol=1e-3 * (name == "GELU"),
    )  # fmt: skip
    assert len(np.unique(wanted)) > 1
