"""Scales and zero points that no tensor can have, or that f32 cannot count with."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from tflgpu import Interpreter
from tflgpu.errors import ModelError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

I8, U8, I16, I32 = DType.I8, DType.U8, DType.I16, DType.I32
PLAIN = Quantization((0.1,), (0,))


def model(op: str, dtype: DType, given: Quantization | None, made: Quantization | None) -> bytes:
    """``op`` of a (2, 3) tensor, given and made with these quantizations."""
    x = TensorSpec("x", (2, 3), dtype if given else DType.F32, quantization=given)
    y = TensorSpec("y", (2, 3), dtype if made else DType.F32, quantization=made)
    operands = (0, 0) if op == "ADD" else (0,)
    return write_model(ModelSpec([x, y], [OperatorSpec(op, {}, operands, (1,), 2)], (0,), (1,)))


def run(content: bytes) -> Array:
    with Interpreter(model_content=content) as interpreter:
        interpreter.allocate_tensors()
        details = interpreter.get_input_details()[0]
        ramp = np.arange(6).reshape(2, 3) * 7 + 1
        interpreter.set_tensor(details["index"], ramp.astype(details["dtype"]))
        interpreter.invoke()
        return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


RANGES = {I8: (-128, 127), U8: (0, 255), I16: (-(2**15), 2**15 - 1), DType.I4: (-8, 7)}


@pytest.mark.parametrize("dtype", RANGES, ids=lambda d: d.value)
def test_a_zero_point_is_a_number_that_the_type_stores(dtype: DType) -> None:
    low, high = RANGES[dtype]
    for point in (low - 1, high + 1, -(2**31), 2**31 - 1):
        content = model("RELU", dtype, Quantization((0.1,), (point,)), PLAIN)
        with pytest.raises(ModelError, match=rf"zero point {point} is outside \[{low}, {high}\]"):
            read_model(content)
    for point in (low, 0, high):
        read_model(model("RELU", dtype, Quantization((0.1,), (point,)), PLAIN))


def test_every_zero_point_along_an_axis_is_looked_at() -> None:
    quant = Quantization((0.1, 0.2, 0.3), (0, 5, 300), 1)
    with pytest.raises(ModelError, match="zero point 300 is outside"):
        read_model(model("RELU", I8, quant, PLAIN))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -0.1])
def test_a_scale_is_a_finite_number(scale: float) -> None:
    content = model("RELU", I8, Quantization((0.375,), (0,)), PLAIN)
    content = content.replace(struct.pack("<f", 0.375), struct.pack("<f", scale))
    with pytest.raises(ModelError, match="not a finite number >= 0"):
        read_model(content)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 3e38])
def test_what_only_moves_asks_for_no_scale(scale: float) -> None:
    """As LiteRT: the stored numbers stay what they are."""
    odd = Quantization((scale,), (0,))
    tensors = [
        TensorSpec("x", (2, 3), I8, quantization=odd),
        TensorSpec("n", (2,), I32, [3, 2]),
        TensorSpec("y", (3, 2), I8, quantization=odd),
    ]
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("RESHAPE", {}, (0, 1), (2,))], (0,), (2,))
    )
    np.testing.assert_array_equal(run(content), [[1, 8], [15, 22], [29, 36]])


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 3e38])
@pytest.mark.parametrize("op", ["RELU", "ADD", "QUANTIZE"])
def test_a_scale_that_f32_cannot_count_with_is_refused(op: str, scale: float) -> None:
    odd = Quantization((scale,), (0,))
    if op == "QUANTIZE":
        if scale > 1:
            np.testing.assert_array_equal(run(model(op, I8, None, odd)), np.zeros((2, 3)))
            return  # every number is less than half a step: that f32 can tell
        content = model(op, I8, None, odd)
    else:
        content = model(op, I8, PLAIN if op == "ADD" else odd, odd)
    with pytest.raises(TflgpuError, match=r"quantized|scale"):
        run(content)


@pytest.mark.parametrize("op", ["CONV_2D", "FULLY_CONNECTED"])
@pytest.mark.parametrize(
    "bias",
    [
        Quantization((0.005, 0.005), (0, 0)),
        Quantization((0.05, 0.05), (0, 0)),
        Quantization((0.005, 0.005), (7, -9)),
        Quantization((0.0, 0.005), (0, 0)),
        None,
    ],
    ids=["right", "scale", "zero point", "scale 0", "none"],
)
def test_a_bias_counts_as_it_is_stored(op: str, bias: Quantization | None) -> None:
    """LiteRT's kernels add it to sums of products, whatever the file says of its scale."""
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    conv = op == "CONV_2D"
    weights = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    scales = Quantization((0.05, 0.05), (0, 0))
    tensors = [
        TensorSpec("x", (1, 2, 2, 3) if conv else (4, 3), I8, quantization=PLAIN),
        TensorSpec(
            "w", (2, 1, 1, 3) if conv else (2, 3), I8,
            weights.reshape(2, 1, 1, 3) if conv else weights, scales,
        ),
        TensorSpec("b", (2,), I32, [100, -200], bias),
        TensorSpec("y", (1, 2, 2, 2) if conv else (4, 2), I8, quantization=PLAIN),
    ]  # fmt: skip
    fields = {"stride_h": 1, "stride_w": 1} if conv else {}
    operator = OperatorSpec(op, fields, (0, 1, 2), (3,), version=3 if conv else 5)
    content = write_model(ModelSpec(tensors, [operator], (0,), (3,)))
    x = (np.arange(12) * 7 + 1).astype(np.int8).reshape(tensors[0].shape)
    found = []
    kernels = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    theirs = litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    for interpreter in (Interpreter(model_content=content), theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    ours, want = (y.astype(int) for y in found)
    assert np.abs(ours - want).max() <= 1
