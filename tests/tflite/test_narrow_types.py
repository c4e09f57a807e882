"""Tensors of bf16 and of 4 bits that a model makes as it runs, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.constants import packed_range
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F32, I32, BF16, I4, U4, I8 = DType.F32, DType.I32, DType.BF16, DType.I4, DType.U4, DType.I8
WHERE = ("litert", "cpu_ref", "opencl")
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1e-20, -2.5]


def results(content: bytes, where: str, feeds: Sequence[Array]) -> list[Array]:
    """What LiteRT makes ("oracle"), or tflgpu on one of its backends."""

    def run(interpreter: object) -> list[Array]:
        interpreter.allocate_tensors()
        for details, feed in zip(interpreter.get_input_details(), feeds, strict=True):
            interpreter.set_tensor(details["index"], feed)
        interpreter.invoke()
        return [
            np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()
        ]

    if where == "oracle":
        return run(litert.Interpreter(model_content=content))
    if where == "litert":
        with tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as interpreter:
            return run(interpreter)
    with (
        tflgpu.GpuDelegate(backend=where) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        return run(interpreter)


def cast(source: tuple[int, DType], target: tuple[int, DType]) -> OperatorSpec:
    fields = {"in_data_type": source[1].tflite, "out_data_type": target[1].tflite}
    return OperatorSpec("CAST", fields, [source[0]], [target[0]], version=7)


#: How many operands of bf16 an operator takes, and the constants behind them.
BRAIN_OPS = {
    "FLOOR": (1, ()), "ROUND": (1, ()), "NEG": (1, ()), "LOGISTIC": (1, ()), "TANH": (1, ()),
    "MAXIMUM": (2, ()), "MINIMUM": (2, ()), "ATAN2": (2, ()),
    "CONCATENATION": (2, ()), "TRANSPOSE": (1, ([1, 0],)), "PAD": (1, ([[0, 1], [2, 0]],)),
    "GATHER": (1, ([2, 0],)),
}  # fmt: skip


def brain_model() -> bytes:
    """Every operator of `BRAIN_OPS`, of one or two bf16 tensors [5, 23], cast to f32."""
    tensors = [
        TensorSpec(n, (5, 23), t) for n, t in zip("xyXY", (F32, F32, BF16, BF16), strict=True)
    ]
    operators, outputs = [cast((0, F32), (2, BF16)), cast((1, F32), (3, BF16))], []
    shapes = {"CONCATENATION": (10, 23), "TRANSPOSE": (23, 5), "PAD": (6, 25), "GATHER": (2, 23)}
    for name, (count, constants) in BRAIN_OPS.items():
        operands = [2, 3][:count]
        for constant in constants:
            data = np.array(constant, np.int32)
            tensors.append(TensorSpec(f"{name} says", data.shape, I32, data))
            operands.append(len(tensors) - 1)
        made, wide = len(tensors), len(tensors) + 1
        shape = shapes.get(name, (5, 23))
        tensors += [TensorSpec(name, shape, BF16), TensorSpec(f"{name} f32", shape)]
        version = builtin_ops()[name].file.max_version
        operators += [
            OperatorSpec(name, {}, operands, [made], version=version),
            cast((made, BF16), (wide, F32)),
        ]
        outputs.append(wide)
    return write_model(ModelSpec(tensors, operators, [0, 1], outputs))


@pytest.mark.parametrize("where", WHERE)
def test_bf16_inside_a_model(where: str) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.uniform(-9, 9, (5, 23)).astype(np.float32) for _ in range(2))
    y[0, 0] = x[0, 0]
    if where != "opencl":
        x.flat[: len(SPECIAL)] = SPECIAL
    content = brain_model()
    wanted = results(content, "oracle", [x, y])
    found = results(content, where, [x, y])
    assert len(wanted) == len(BRAIN_OPS)
    for name, a, b in zip(BRAIN_OPS, found, wanted, strict=True):
        approximate = name in ("LOGISTIC", "TANH", "ATAN2")
        if name in (
            "MAXIMUM",
            "MINIMUM",
        ):  # LiteRT's kernels for bf16 lose a NaN; those for f32 do not
            assert where == "opencl" or np.isnan(a[0, 0])
            a[0, 0] = b[0, 0]
        # bf16 has 8 bits: one step is at most 2^-7 of a number.
        np.testing.assert_allclose(a, b, rtol=2**-7 if approximate else 0, atol=0, err_msg=name)
        assert not np.any(np.where(np.isfinite(a), a, 0).view(np.uint32) & 0xFFFF), name


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [I4, U4])
def test_four_bits_are_stored_and_read(dtype: DType, where: str) -> None:
    quant = Quantization((0.5,), (0 if dtype is I4 else 3,))
    given = TensorSpec("x", (3, 7))
    tensors = [given, TensorSpec("c", (3, 7), dtype), TensorSpec("q", (3, 7), dtype, None, quant),
               TensorSpec("C", (3, 7)), TensorSpec("Q", (3, 7)),
               TensorSpec("perm", (2,), I32, np.array([1, 0], np.int32)),
               TensorSpec("t", (7, 3), dtype, None, quant)]  # fmt: skip
    operators = [
        cast((0, F32), (1, dtype)), OperatorSpec("QUANTIZE", {}, [0], [2], version=4),
        cast((1, dtype), (3, F32)), OperatorSpec("DEQUANTIZE", {}, [2], [4], version=6),
        OperatorSpec("TRANSPOSE", {}, [2, 5], [6], version=4),
    ]  # fmt: skip
    content = write_model(ModelSpec(tensors, operators, [0], [1, 2, 3, 4, 6]))
    x = np.random.default_rng(1).uniform(-12, 12, (3, 7)).astype(np.float32)
    x[0, :4] = [300, -300, 1e9, 0.5]
    wanted = results(content, "oracle", [x])
    found = results(content, where, [x])
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [I4, U4])
def test_four_bits_that_come_in(dtype: DType, where: str) -> None:
    tensors = [
        TensorSpec("x", (3, 5), dtype),
        TensorSpec("w", (3,), I32, np.array([1, 5, 3], np.int32)),
        TensorSpec("y", (1, 5, 3), dtype),
        TensorSpec("z", (3, 5)),
    ]
    operators = [OperatorSpec("RESHAPE", {}, [0, 1], [2]), cast((0, dtype), (3, F32))]
    content = write_model(ModelSpec(tensors, operators, [0], [2, 3]))
    low, high = packed_range(dtype)
    x = np.arange(low, high).astype(dtype.unpacked.numpy).reshape(3, 5)
    wanted = results(content, "oracle", [x])
    for a, b in zip(results(content, where, [x]), wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    x[1, 2] = high + 1
    for each in ("oracle", where):
        with pytest.raises(ValueError, match=f"{low} (and|to) {high}"):
            results(content, each, [x])


@pytest.mark.parametrize(
    ("op", "types", "said"),
    [
        ("ABS", (I8, I4), "has no result of i4"),
        ("BITCAST", (I32, BF16), "reads the bits"),
        ("BITCAST", (I4, I8), "reads the bits"),
    ],
)
def test_what_cannot_be_held_is_refused(op: str, types: tuple[DType, DType], said: str) -> None:
    tensors = [TensorSpec("x", (4, 2), types[0]), TensorSpec("y", (4, 2), types[1])]
    if types[1] is BF16:
        tensors += [TensorSpec("z", (4, 2))]
    more = [cast((1, BF16), (2, F32))] if types[1] is BF16 else []
    content = write_model(
        ModelSpec(tensors, [OperatorSpec(op, {}, [0], [1]), *more], [0], [len(tensors) - 1])
    )
    x = np.zeros((4, 2), types[0].unpacked.numpy)
    for where in ("litert", "cpu_ref"):
        with pytest.raises(tflgpu.UnsupportedError, match=said):
            results(content, where, [x])
