"""Whole numbers of 8 and 16 bits that have no scale: what LiteRT computes on them, and products of
complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
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


def both(content: bytes, xs: Sequence[Array]) -> list[Array]:
    """What LiteRT's kernels make of a model's inputs, and what the references do."""
    found = []
    plain = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    oracle = litert.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    with tflgpu.GpuDelegate(backend="cpu_ref") as delegate:
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for it in (oracle, ours):
            it.allocate_tensors()
            for i, x in enumerate(xs):
                it.set_tensor(i, x)
            it.invoke()
            found.append(np.array(it.get_tensor(len(xs))))
        ours.close()
    return found


@pytest.mark.parametrize(("op", "dtype", "made"), CASES)
def test_as_litert(op: str, dtype: DType, made: DType) -> None:
    shapes = [(3, 5)] if op in ("NEG", "ABS") else [(3, 5), (5,)]
    tensors = [TensorSpec(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    operands = list(range(len(shapes)))
    operator = OperatorSpec(
        op, {}, operands, [len(shapes)], version=builtin_ops()[op].file.max_version
    )
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
    wanted, got = both(content, xs)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [I8, I16])
@pytest.mark.parametrize("op", ["FLOOR_DIV", "FLOOR_MOD"])
def test_scales_that_litert_does_not_look_at(op: str, dtype: DType) -> None:
    quant = Quantization((0.25,), (0,)), Quantization((0.5,), (3 if dtype is I8 else 0,))
    tensors = [TensorSpec("x", (3, 5), dtype, None, quant[0]), TensorSpec("y", (5,), dtype, None,
    quant[1]),
               TensorSpec("z", (3, 5), dtype, None, quant[0])]  # fmt: skip
    operator = OperatorSpec(op, {}, [0, 1], [2], version=builtin_ops()[op].file.max_version)
    x = np.arange(-49, 56, 7).astype(dtype.numpy).reshape(3, 5)
    y = np.array([-9, 4, -5, 7, 11], dtype.numpy)
    wanted, got = both(write_model(ModelSpec(tensors, [operator], [0, 1], [2])), [x, y])
    np.testing.assert_array_equal(got, wanted)
    assert got[0, 0] == (5 if op == "FLOOR_DIV" else -4)


@pytest.mark.parametrize("dtype", [I8, U8, I16])
@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_pools_without_a_scale(op: str, dtype: DType) -> None:
    fields = {"stride_h": 1, "stride_w": 2, "filter_height": 2, "filter_width": 3}
    tensors = [TensorSpec("x", (1, 3, 7, 3), dtype), TensorSpec("y", (1, 3, 4, 3), dtype)]
    operator = OperatorSpec(op, fields, [0], [1], version=3)
    low = 0 if dtype is U8 else -128
    x = np.random.default_rng(2).integers(low, low + 256, (1, 3, 7, 3)).astype(dtype.numpy)
    wanted, got = both(write_model(ModelSpec(tensors, [operator], [0], [1])), [x])
    np.testing.assert_array_equal(got, wanted)
