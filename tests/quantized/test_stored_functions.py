"""Functions of one quantized tensor that LiteRT computes on whole numbers: every operand of 8 bits,
and some of 16, against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.float_view import float_view
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I8, U8, I16 = DType.I8, DType.U8, DType.I16
Q = tuple[DType, float, int]
#: Op, options, operand, result: a type, a scale and a zero point each. A rounded result differs in
#: up to half of the numbers.
CASES: list[tuple[str, dict[str, float], Q, Q]] = [
    ("SQRT", {}, (I8, 0.3918, -128), (I8, 0.0392, -128)),
    ("SQRT", {}, (I16, 0.008, 0), (I16, 5.06e-5, 0)),
    # Two of its numbers are a step off when they are rounded.
    ("RSQRT", {}, (I8, 0.0094, -128), (I8, 0.0057, -128)),
    ("ABS", {}, (I8, 0.289, 67), (I8, 1.143, -30)),
    ("ABS", {}, (I16, 7.36e-4, 0), (I16, 1.8e-3, 0)),
    ("RELU", {}, (I8, 0.682, -51), (I8, 1.5585, 74)),
    ("RELU6", {}, (U8, 0.0222, 126), (U8, 0.046, 195)),
    ("LEAKY_RELU", {"alpha": 0.3}, (I8, 0.1, 20), (I8, 0.11, -53)),
    ("LEAKY_RELU", {"alpha": -0.2}, (U8, 0.5, 90), (U8, 0.9, 47)),
    ("LEAKY_RELU", {"alpha": 0.3}, (I16, 0.0124, 0), (I16, 0.0125, 0)),
    # Too flat for XNNPACK.
    ("LEAKY_RELU", {"alpha": 1e-3}, (I8, 0.25, 20), (I8, 0.99, -53)),
    ("QUANTIZE", {}, (I8, 0.0125, 36), (I8, 0.036, -87)),
    ("QUANTIZE", {}, (I16, 7.77e-4, 0), (I16, 2.3e-3, 0)),
    ("QUANTIZE", {}, (I16, 1e-4, 0), (I8, 0.06, 3)),
]


def model(op: str, fields: dict[str, float], x: Q, y: Q, count: int) -> bytes:
    tensors = [
        TensorSpec(
            "t", (count,), dtype, quantization=Quantization((float(np.float32(s)),), (z,), 0)
        )
        for dtype, s, z in (x, y)
    ]
    version = min(2, builtin_ops()[op].file.max_version)
    return write_model(
        ModelSpec(tensors, [OperatorSpec(op, fields, [0], [1], version=version)], [0], [1])
    )


def run(it: Any, x: Array) -> Array:
    it.allocate_tensors()
    it.set_tensor(0, x)
    it.invoke()
    return np.array(it.get_tensor(1))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(("op", "fields", "x", "y"), CASES)
def test_every_operand(op: str, fields: dict[str, float], x: Q, y: Q, device: int) -> None:
    info = np.iinfo(x[0].numpy)
    least = (
        x[2] if op in ("SQRT", "RSQRT") else int(info.min)
    )  # LiteRT refuses to run negative numbers
    given = np.arange(least, int(info.max) + 1, 13 if x[0] is I16 else 1).astype(x[0].numpy)
    content = model(op, fields, x, y, len(given))
    wanted = run(litert.Interpreter(model_content=content), given)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        np.testing.assert_array_equal(run(it, given), wanted)
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("op", ["ABS", "RELU", "LEAKY_RELU", "QUANTIZE"])
def test_no_table_where_rounding_gives_the_same(op: str) -> None:
    """A table joins no neighbour's kernel. Powers of two round once."""
    fields = {"alpha": 0.5} if op == "LEAKY_RELU" else {}
    content = model(op, fields, (I8, 0.25, 5), (I8, 0.125, -3), 7)
    view = float_view(build_graph(read_model(content), 0, builtin_ops()), builtin_ops()).graph
    assert "QUANTIZED_TABLE" not in [n.op for n in view]


@pytest.mark.parametrize("alpha", [np.inf, -np.inf, np.nan])
def test_a_factor_that_is_no_number(alpha: float) -> None:
    """LEAKY_RELU of a damaged file: what is not negative is what it would be."""
    quant = Quantization((0.1,), (0,))
    tensors = [TensorSpec(name, (3,), I8, quantization=quant) for name in "xy"]
    step = OperatorSpec("LEAKY_RELU", {"alpha": alpha}, [0], [1])
    content = write_model(ModelSpec(tensors, [step], [0], [1]))
    with (
        tflgpu.GpuDelegate(backend="cpu_ref") as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as made,
    ):
        made.allocate_tensors()
        made.set_tensor(0, np.int8([-3, 5, 127]))
        made.invoke()
        np.testing.assert_array_equal(made.get_tensor(1)[1:], [5, 127])
