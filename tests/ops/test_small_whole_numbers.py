"""Whole numbers of 8 and 16 bits that have no scale: what LiteRT computes on them, and products of complex numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I8, U8, I16, C64 = DType.I8, DType.U8, DType.I16, DType.C64
CASES = [
    *((op, I16, I16) for op in ("ADD", "MUL", "FLOOR_DIV", "FLOOR_MOD")),
    *((op, I8, I8) for op in ("FLOOR_DIV", "FLOOR_MOD")),
    *((op, dtype, dtype) for op in ("MAXIMUM", "MINIMUM") for dtype in (I8, U8, I16)),
    *((op, I16, DType.BOOL) for op in ("EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")),
    ("NEG", I8, I8), ("NEG", I16, I16), ("ABS", I16, I16), ("MUL", C64, C64),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype", "made"), CASES)
def test_as_litert(op: str, dtype: DType, made: DType) -> None:
    shapes = [(3, 5)] if op in ("NEG", "ABS") else [(3, 5), (5,)]
    tensors = [TensorSpec(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    operands = list(range(len(shapes)))
    operator = OperatorSpec(op, {}, operands, [len(shapes)], version=builtin_ops()[op].max_version)
    content = write_model(
        ModelSpec([*tensors, TensorSpec("y", (3, 5), made)], [operator], operands, [len(shapes)])
    )
    rng = np.random.default_rng(7)
    xs = [rng.integers(-90, 90, s).astype(dtype.numpy) for s in shapes]
    if dtype is C64:
        xs = [(x + 1j * x[::-1]).astype(np.complex64) for x in xs]
    elif len(xs) == 2:
        xs[0][0, :2] = xs[1][:2]  # equal ones
        xs[1][xs[1] == 0] = 7
        if op in ("ADD", "MUL"):
            xs[0][1] = 32767  # wraps around
    found = []
    with tflgpu.GpuDelegate(backend="cpu_ref") as delegate:
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for it in (litert.Interpreter(model_content=content), ours):
            it.allocate_tensors()
            for i, x in enumerate(xs):
                it.set_tensor(i, x)
            it.invoke()
            found.append(np.array(it.get_tensor(len(xs))))
        ours.close()
    wanted, got = found
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
