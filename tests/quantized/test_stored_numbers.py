"""Ops that take quantized tensors as they are stored, whatever their zero point: as LiteRT, bit for
bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.float_view import float_view
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.quantized.quantized_cases import CASES as SINGLE
from tests.quantized.quantized_cases import Built, Case, build
from tests.running import allocate_and_run, first_results, side_by_side
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

QUANT = Quantization((0.5,), (3,))
X = np.array([0, 3, -7, 3, 5, 0, 3], np.int8)


def stored(name: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, shape, DType.I8, None, QUANT)


def const(data: Any) -> TensorSpec:
    array = np.asarray(data, np.int32)
    return TensorSpec("c", array.shape, DType.I32, array)


ZEROS = Quantization((0.0,), (0,))
MODELS: dict[str, tuple[list[TensorSpec], OperatorSpec, list[int]]] = {
    "SCATTER_ND": (
        [stored("x", (7,)), const([[1], [4], [1], [0], [8], [6], [4]]), const([9]), stored("y", (9,
        ))],
        OperatorSpec("SCATTER_ND", {}, [1, 0, 2], [3]), [3],
    ),
    "WHERE": (
        [stored("x", (7,)), TensorSpec("y", (1, 1), DType.I64, shape_signature=(-1, 1))],
        OperatorSpec("WHERE", {}, [0], [1], version=2), [1],
    ),
    "UNIQUE": (
        [stored("x", (7,)), stored("y", (7,)), TensorSpec("i", (7,), DType.I32)],
        OperatorSpec("UNIQUE", {"idx_out_type": 2}, [0], [1, 2]), [1, 2],
    ),
    # No zero point is looked at.
    "NEG": ([stored("x", (7,)), stored("y", (7,))], OperatorSpec("NEG", {}, [0], [1]), [1]),
}  # fmt: skip


def run(interpreter: Any) -> list[Any]:
    return first_results(interpreter, {0: X})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["cpu_ref", "litert"])
def test_as_litert(name: str, side: str) -> None:
    tensors, operator, outputs = MODELS[name]
    content = write_model(ModelSpec(tensors, [operator], [0], outputs))
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend=side
    ) as ours:
        found = run(ours)
    for mine, theirs in zip(found, run(litert.Interpreter(model_content=content)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_constants_of_zeros_without_a_scale() -> None:
    """Converters write a scale of 0 for them, and a normalization repeats them by FILL."""
    fine = Quantization((1e-4,), (0,))
    tensors = [
        TensorSpec("x", (2, 6), DType.I16, None, fine),
        const([6]),
        TensorSpec("zero", (), DType.I16, np.array(0, np.int16), ZEROS),
        TensorSpec("zeros", (6,), DType.I16, None, ZEROS),
        TensorSpec("y", (2, 6), DType.I16, None, fine),
    ]
    operators = [
        OperatorSpec("FILL", {}, [1, 2], [3], version=3),
        OperatorSpec("SUB", {}, [0, 3], [4], version=5),
    ]
    content = write_model(ModelSpec(tensors, operators, [0], [4]))
    x = np.arange(-600, 600, 100, dtype=np.int16).reshape(2, 6)
    with tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as ours:
        allocate_and_run(ours, {0: x})
        np.testing.assert_array_equal(ours.get_tensor(4), x)


# Functions of one quantized tensor that LiteRT computes on whole numbers: every operand of 8
# bits, and some of 16, against it.


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


def run_functions(it: Any, x: Array) -> Array:
    allocate_and_run(it, {0: x})
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
    wanted = run_functions(litert.Interpreter(model_content=content), given)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        np.testing.assert_array_equal(run_functions(it, given), wanted)
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
    content = small_model(
        dict.fromkeys("xy", tensor_of((3,), I8, quantization=quant)),
        ("y = LEAKY_RELU(x)", {"alpha": alpha}),
    )
    with (
        tflgpu.GpuDelegate(backend="cpu_ref") as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as made,
    ):
        allocate_and_run(made, {0: np.int8([-3, 5, 127])})
        np.testing.assert_array_equal(made.get_tensor(1)[1:], [5, 127])


# Functions of 8 and 16 bits that TFLite's kernels do not round: every stored operand, against
# LiteRT.


def run_tables(interpreter: object, x: Array) -> Array:
    allocate_and_run(interpreter, {0: x})
    return np.array(interpreter.get_tensor(1))


@pytest.mark.parametrize("where", ["cpu_ref", "opencl"])
@pytest.mark.parametrize(
    ("op", "dtype", "scales", "zeros"),
    [
        ("SQRT", DType.I8, (0.05, 0.02), (5, -128)),
        ("SQRT", DType.I8, (0.0003, 0.0017), (-10, 3)),
        ("SQRT", DType.I16, (0.07, 0.013), (0, 0)),
        ("LOG", DType.I8, (0.031, 1 / 64), (5, 0)),
        ("LOG", DType.I8, (0.031, 1 / 64), (-127, 0)),  # a single one has no logarithm
        ("EXP", DType.I8, (0.05, 0.02), (5, -128)),
    ],
)
def test_every_stored_number(
    op: str, dtype: DType, scales: tuple[float, float], zeros: tuple[int, int], where: str
) -> None:
    info = np.iinfo(dtype.numpy)
    size = int(info.max) - int(info.min) + 1
    tensors = [
        TensorSpec(name, (size,), dtype, None, Quantization((scale,), (zero,)))
        for name, scale, zero in zip("xy", scales, zeros, strict=True)
    ]
    content = write_model(ModelSpec(tensors, [OperatorSpec(op, {}, [0], [1], version=2)], [0], [1]))
    x = np.arange(info.min, info.max + 1).astype(dtype.numpy)
    if op == "SQRT":  # LiteRT refuses to run what has no root
        x = np.maximum(x, dtype.numpy.type(zeros[0]))
    wanted = run_tables(litert.Interpreter(model_content=content), x)
    with (
        tflgpu.GpuDelegate(backend=where) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = run_tables(ours, x)
    assert len(np.unique(wanted)) > 30
    np.testing.assert_array_equal(found, wanted)


# Functions of 16-bit tensors: every operand there is, against LiteRT.


FULL = 1 << 15
#: Op, the ends of its operand's range and of its result's; LiteRT takes no zero points.
INT16_CASES = [
    ("EXP", 9.0, 8103.0), ("EXP", 3.0, 2.8),
    ("LOG", 100.0, 4.6), ("LOG", 1.0, 6.6),
    # The last piece climbs over all of the range: TFLite's slope has no room for that.
    ("LOG", 1.001, 1e-3),
    ("RSQRT", 20.0, 3.2), ("RSQRT", 1.0, 90.0), ("GELU", 6.0, 6.0), ("TANH", 4.0, 1.0), ("TANH",
    5.3, 1.0),
    ("LOGISTIC", 11.0, 1.0), ("LOGISTIC", 2.9, 1.0),
    # Powers of two, which are computed by other means.
    ("TANH", 8.0, 1.0), ("TANH", 16.0, 1.0), ("LOGISTIC", 8.0, 1.0),
]  # fmt: skip


def tensor(name: str, reach: float) -> TensorSpec:
    quant = Quantization((float(np.float32(reach / FULL)),), (0,), 0)
    return TensorSpec(name, (1 << 16,), DType.I16, quantization=quant)


def model_int16(op: str, x: TensorSpec, y: TensorSpec) -> bytes:
    operator = OperatorSpec(op, {}, [0], [1], version=builtin_ops()[op].file.max_version)
    return write_model(ModelSpec([x, y], [operator], [0], [1]))


def run_int16(interpreter: object, x: Array) -> Array:
    it = interpreter
    allocate_and_run(it, {0: x})
    return np.array(it.get_tensor(1))  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(("op", "reach", "result"), INT16_CASES)
def test_int16_every_operand(op: str, reach: float, result: float, device: int) -> None:
    """One step where C's functions and NumPy's round apart, and none where whole numbers are all
    there is; a rounded function is up to 65535 steps off."""
    content = model_int16(op, tensor("x", reach), tensor("y", result))
    x = np.arange(-FULL, FULL, dtype=np.int16)
    if op == "RSQRT":
        x = np.maximum(x, 0)  # LiteRT refuses to run others
    wanted = run_int16(litert.Interpreter(model_content=content), x)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        got = run_int16(it, x)
    apart = np.abs(got.astype(np.int64) - wanted)
    assert apart.max() <= (0 if op in ("TANH", "LOGISTIC") else 1)
    assert len(np.unique(wanted)) > 100


# DIV and comparisons of 8-bit tensors: every pair of stored numbers, as LiteRT.


#: Scales and zero points of dividend, divisor and result, and a fused activation.
PAIRS_CASES = [
    ((0.05, 3), (0.02, -7), (0.03, 5), 0),
    ((0.01, 0), (0.03, 0), (0.5, 0), 0),
    ((0.016, -10), (0.024, -128), (2.3, -120), 1),
]


def _run(it: Any, xs: list[Array]) -> Array:
    allocate_and_run(it, xs)
    return np.array(it.get_tensor(2))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("case", PAIRS_CASES, ids=str)
def test_every_pair(case: tuple[Any, ...], device: int) -> None:
    *quants, activation = case
    tensors = [
        TensorSpec(n, (256, 256), DType.I8, None, Quantization((s,), (z,)))
        for n, (s, z) in zip("aby", quants, strict=True)
    ]
    fields = {"fused_activation_function": activation}
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("DIV", fields, [0, 1], [2], version=2)], [0, 1], [2])
    )
    every = np.broadcast_to(np.arange(-128, 128, dtype=np.int8), (256, 256))
    zero = quants[1][1]
    xs = [every.T.copy(), np.where(every == zero, np.int8(zero + 1), every)]
    wanted = _run(litert.Interpreter(model_content=content), xs)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(_run(ours, xs), wanted)
    assert len(np.unique(wanted)) > 20


def check_every_pair(
    versions: dict[str, int], every: Array, quants: Sequence[Quantization], device: int
) -> None:
    """Comparisons of each number with each are equal to LiteRT's."""
    shape, dtype = (every.size, every.size), DType.from_numpy(every.dtype)
    tensors = [TensorSpec(n, shape, dtype, None, q) for n, q in zip("ab", quants, strict=True)]
    tensors += [TensorSpec(op, shape, DType.BOOL) for op in versions]
    operators = [
        OperatorSpec(op, {}, [0, 1], [i], version=version)
        for i, (op, version) in enumerate(versions.items(), 2)
    ]
    content = write_model(ModelSpec(tensors, operators, [0, 1], [2, 3, 4]))
    columns = np.broadcast_to(every, shape)
    xs = [columns.T.copy(), columns.copy()]
    results = side_by_side(content, xs, device=device, allow_fallback=False)
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert 0 < wanted.sum() < every.size**2


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    "scales", [(0.05, 0.02), (0.001, 0.0013), (0.0867, 0.1734), (0.87, 0.261)], ids=str
)
def test_comparisons(scales: tuple[float, float], device: int) -> None:
    """What lies within one 256th of 1 is equal to LiteRT."""
    quants = [Quantization((s,), (z,)) for s, z in zip(scales, (3, -7), strict=True)]
    ops = {"LESS": 2, "EQUAL": 2, "GREATER_EQUAL": 2}
    check_every_pair(ops, np.arange(-128, 128, dtype=np.int8), quants, device)


@pytest.mark.parametrize("device", [0, 1])
def test_comparisons_of_words(device: int) -> None:
    """Which is larger is said of the stored numbers, whatever their scales; whether they are equal,
    of 256ths."""
    quants = [Quantization((s,), (0,)) for s in (0.002, 0.0003)]
    ops = {"LESS": 2, "EQUAL": 5, "GREATER": 2}
    check_every_pair(ops, np.arange(-20, 21, dtype=np.int16), quants, device)


# Quantized operators one at a time: at most one step from what LiteRT's kernels compute by
# default.


DTYPES = (DType.I8, DType.U8)
#: Ops that only move or choose elements, or follow TFLite's arithmetic: not one step is allowed.
EXACT = frozenset(
    {"ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "PRELU", "RESIZE_BILINEAR", "AVERAGE_POOL_2D",
    "CONCATENATION", "MAX_POOL_2D", "RESHAPE", "TRANSPOSE", "STRIDED_SLICE", "SPLIT", "PAD",
     "MAXIMUM", "RESIZE_NEAREST_NEIGHBOR"}
)  # fmt: skip


def _run_single(interpreter: Any, built: Built) -> list[Array]:
    allocate_and_run(interpreter, built.inputs)
    return [interpreter.get_tensor(index) for index in built.outputs]


def _litert(built: Built) -> list[Array]:
    return _run_single(litert.Interpreter(model_content=built.content), built)


def _check(case: Case, got: list[Array], expected: list[Array]) -> None:
    most = 0 if case.op in EXACT else 1
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        steps = np.abs(ours.astype(np.int32) - theirs.astype(np.int32))
        assert steps.max() <= most, f"{steps.max()} steps; {(steps > most).sum()} of {steps.size}"
        assert len(np.unique(theirs)) > 3, "the results say nothing"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c.id)
def test_on_the_cpu(case: Case, dtype: DType) -> None:
    built = build(case, dtype)
    interpreter = tflgpu.Interpreter(model_content=built.content)
    _check(case, _run_single(interpreter, built), _litert(built))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c.id)
@pytest.mark.parametrize("backend", ["vulkan"])  # PoCL takes three times as long to compile them
def test_on_a_device(case: Case, dtype: DType, backend: str) -> None:
    built = build(case, dtype, seed=1)
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        interpreter = tflgpu.Interpreter(
            model_content=built.content, experimental_delegates=[delegate]
        )
        got = _run_single(interpreter, built)
        report = interpreter.report
        interpreter.close()
    assert report.fully_delegated, str(report)
    _check(case, got, _litert(built))
