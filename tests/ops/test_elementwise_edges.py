"""What random samples do not reach: huge operands, ties, negative bases, refused operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tflgpu
from tflgpu.conformance.samples import SampleCase, materialize, run_reference
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device
from tflgpu.errors import DynamicError, InputError, ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import TensorSpec
from tflgpu.kernels.binary import _floored
from tflgpu.language import evaluate
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import Activation, Arg, Fields, OpDef, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as FileTensor
from tflgpu.tflite.write import write_model

from tests.op_case import run_case
from tests.running import allocate_and_run

OPS = builtin_ops()
SATURATING = ("TANH", "LOGISTIC", "ELU", "GELU", "HARD_SWISH", "RELU6")


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


def i32(values: Any) -> Array:
    return np.array(values, np.int32)


def i8(values: Any) -> Array:
    return np.array(values, np.int8)


def case_of(op: str, operands: list[Any], fields: dict[str, Any] | None = None) -> SampleCase:
    """A case with these very operands at run time, and what the reference makes of them."""
    arrays = [np.asarray(o) for o in operands]
    args = tuple(Arg(a.shape, DType.from_numpy(a.dtype), 1, 2) for a in arrays)
    case = materialize(OPS[op], Sample("edge", fields or {}, args))
    for value, array in zip(case.graph.inputs, arrays, strict=True):
        case.arrays[value.id] = array
    case.expected[:] = run_reference(case, case.arrays)[0]
    return case


def run(case: SampleCase, device: Device, precision: Precision) -> Array:
    results = run_case(case, device, precision)
    assert not isinstance(results, Unsupported), results
    return results[0]


def reference(op: str, *operands: npt.ArrayLike, fields: dict[str, Any] | None = None) -> Array:
    definition = OPS[op]
    attributes = definition.parse(Fields(op, fields or {}))
    return definition.reference(attributes, [np.asarray(o) for o in operands])[0]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("op", SATURATING)
def test_huge_operands_saturate(op: str, precision: Precision, device: Device) -> None:
    sizes = f32([0, 0.01, 5, 11, 12, 20, 90, 1000, 30000])
    case = case_of(op, [np.concatenate([-sizes, sizes])[None]])
    got = run(case, device, precision)
    assert np.isfinite(got).all()
    case.tolerance(half=precision is not Precision.F32).check(got, case.expected[0])


@pytest.mark.parametrize("precision", list(Precision))
def test_approximate_gelu_of_huge_operands(precision: Precision, device: Device) -> None:
    x = f32([[-30000, -100, -41, -8, 8, 41, 100, 30000]])
    case = case_of("GELU", [x], {"approximate": True})
    got = run(case, device, precision)
    case.tolerance(half=precision is not Precision.F32).check(got, case.expected[0])


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("op", ["SOFTMAX", "LOG_SOFTMAX"])
def test_softmax_of_huge_operands(op: str, precision: Precision, device: Device) -> None:
    x = f32([[30000, 29999, -30000, 0, 30000], [-30000, -30000, -30000, -29984, -30000]])
    if precision is not Precision.F32:
        x = x.astype(np.float16).astype(np.float32)
    case = case_of(op, [x], {"beta": 1.0} if op == "SOFTMAX" else None)
    got = run(case, device, precision)
    assert np.isfinite(got).all()
    case.tolerance(half=precision is not Precision.F32).check(got, case.expected[0])


@pytest.mark.parametrize("beta", [-1.5, 0.0])
def test_softmax_of_odd_beta(beta: float, device: Device) -> None:
    x = f32([[100, -100, 3], [1, 2, 400]])
    case = case_of("SOFTMAX", [x], {"beta": beta})
    np.testing.assert_allclose(case.expected[0].sum(-1), 1, rtol=1e-6)
    case.tolerance().check(run(case, device, Precision.F32), case.expected[0])


@pytest.mark.parametrize("precision", list(Precision))
def test_norm_of_huge_and_tiny_rows(precision: Precision, device: Device) -> None:
    x = f32([[300, 400, 0, 0, 0], [30000, 0, 30000, 0, 0], [0, 0, 0, 0, 0]])
    got = run(case_of("L2_NORMALIZATION", [x]), device, precision)
    half = np.sqrt(0.5)
    want = f32([[0.6, 0.8, 0, 0, 0], [half, 0, half, 0, 0], [0, 0, 0, 0, 0]])
    Tolerance.transcendental(half=precision is not Precision.F32).check(got, want)


def test_elu_keeps_its_accuracy_near_zero(device: Device) -> None:
    x = -np.logspace(-7, 1, 97, dtype=np.float32)[None]
    got = run(case_of("ELU", [x]), device, Precision.F32)
    np.testing.assert_allclose(got, np.expm1(x.astype(np.float64)), rtol=5e-7)


def test_rounding_of_halves(device: Device) -> None:
    x = f32([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 3.0]])
    want = {
        "ROUND": [[-2, -2, 0, 0, 2, 2, 0, 3]],
        "FLOOR": [[-3, -2, -1, 0, 1, 2, 0, 3]],
        "CEIL": [[-2, -1, 0, 1, 2, 3, 1, 3]],
        "SIGN": [[-1, -1, -1, 1, 1, 1, 1, 1]],
    }
    for op, rounded in want.items():
        case = case_of(op, [x])
        np.testing.assert_array_equal(case.expected[0], f32(rounded), op)
        np.testing.assert_array_equal(run(case, device, Precision.F32), f32(rounded), op)


def test_powers_of_negative_numbers(device: Device) -> None:
    base = f32([[-2, -2, -2, -2, 0, 0, -3, 2, -8]])
    power = f32([[3, 2, -1, 0, 0, 2, 0.5, -2, 5]])
    want = f32([[-8, 4, -0.5, 1, 1, 0, np.nan, 0.25, -32768]])
    case = case_of("POW", [base, power])
    Tolerance.transcendental().check(case.expected[0], want, "reference")
    Tolerance.transcendental().check(run(case, device, Precision.F32), want, "kernel")


def test_floored_quotients_next_to_whole_numbers(device: Device) -> None:
    # 6 / f32(0.1) is below 60 by less than f32 can tell.
    a = f32([[6, -6, 1, 0.3, 7, -7, 7, -7]])
    b = f32([[0.1, 0.1, 0.1, 0.1, 2, 2, -2, -2]])
    case = case_of("FLOOR_DIV", [a, b])
    np.testing.assert_array_equal(case.expected[0], [[59, -60, 9, 3, 3, -4, -4, 3]])
    np.testing.assert_array_equal(run(case, device, Precision.F32), case.expected[0])
    remainder = case_of("FLOOR_MOD", [a, b])
    got = run(remainder, device, Precision.F32)
    np.testing.assert_allclose(got, remainder.expected[0], atol=1e-6)
    assert ((got * b >= 0) & (np.abs(got) < np.abs(b))).all()


def test_whole_numbers_wrap_truncate_and_floor(device: Device) -> None:
    top = np.iinfo(np.int32).max
    pairs: dict[str, tuple[list[int], list[int], list[int]]] = {
        "ADD": ([top, 5], [1, 6], [-top - 1, 11]),
        "DIV": ([7, -7, 7, -7], [2, 2, -2, -2], [3, -3, -3, 3]),
        "FLOOR_DIV": ([7, -7, 7, -7], [2, 2, -2, -2], [3, -4, -4, 3]),
        "FLOOR_MOD": ([7, -7, 7, -7], [2, 2, -2, -2], [1, 1, -1, -1]),
    }
    for op, (a, b, want) in pairs.items():
        case = case_of(op, [i32([a]), i32([b])])
        np.testing.assert_array_equal(case.expected[0], [want], op)
        np.testing.assert_array_equal(run(case, device, Precision.F32), [want], op)


@pytest.mark.parametrize("op", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_a_whole_number_is_not_divided_by_zero(op: str) -> None:
    with pytest.raises(InputError, match="divided by zero"):
        reference(op, i32([1, 2]), i32([3, 0]))


def test_a_whole_number_has_no_negative_power() -> None:
    with pytest.raises(InputError, match="negative power"):
        reference("POW", i32([2]), i32([-1]))


def test_sums_of_many_operands_run_in_turns(device: Device) -> None:
    count = 3 * device.caps.max_bindings
    operands = [np.full((1, 3, 5), 2.0**-i, np.float32) for i in range(count)]
    case = case_of("ADD_N", operands)
    np.testing.assert_allclose(run(case, device, Precision.F32), case.expected[0], rtol=1e-6)


def _operands(*specs: tuple[tuple[int, ...], DType]) -> list[Operand]:
    return [Operand(TensorSpec(shape, dtype)) for shape, dtype in specs]


def _infer(op: str, operands: list[Operand], fields: dict[str, Any] | None = None) -> Any:
    definition = OPS[op]
    return definition.infer(definition.parse(Fields(op, fields or {})), operands)


F32, I32, I8, BOOL = DType.F32, DType.I32, DType.I8, DType.BOOL


@pytest.mark.parametrize(
    ("op", "specs", "message"),
    [
        ("ADD", [((3, 4), F32), ((5,), F32)], r"\[3, 4\] and \[5\] do not broadcast"),
        ("MUL", [((3,), F32), ((3,), I32)], "f32 and i32"),
        ("ADD", [((3,), F32)], "takes 2 operands, got 1"),
        ("LOGICAL_AND", [((3,), F32), ((3,), F32)], "takes bool, not f32"),
        ("ATAN2", [((3, 4), F32), ((4,), F32)], "does not broadcast"),
        ("SQRT", [((3,), I32)], "not i32"),
        ("ADD_N", [((3,), F32), ((4,), F32)], "operand 1"),
        ("SELECT", [((3, 4), BOOL), ((3, 4), F32), ((4,), F32)], "differ"),
        ("SELECT_V2", [((3,), F32), ((3,), F32), ((3,), F32)], "not bool"),
        ("PRELU", [((3, 4), F32), ((5,), F32)], "do not broadcast"),
        ("SOFTMAX", [((), F32)], "scalar"),
        ("DEQUANTIZE", [((3,), I8)], "no scale"),
    ],
)
def test_refused_operands_are_named(
    op: str, specs: list[tuple[tuple[int, ...], DType]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        _infer(op, _operands(*specs))


@pytest.mark.parametrize("op", ["MEAN", "CUMSUM", "ARG_MAX"])
def test_axes_must_be_known_and_within_the_rank(op: str) -> None:
    x = Operand(TensorSpec((2, 3), F32))
    with pytest.raises(DynamicError):
        _infer(op, [x, Operand(TensorSpec((1,), I32))])
    with pytest.raises(ModelError, match="axis 2"):
        _infer(op, [x, Operand(TensorSpec((1,), I32), i32([2]))])


@pytest.mark.parametrize("op", ["ADD", "LOGISTIC", "EQUAL", "MEAN", "RELU"])
def test_arithmetic_of_scaled_numbers_is_refused(op: str) -> None:
    x = i8([[1, 2]])
    operands = {"ADD": [x, x], "EQUAL": [x, x], "MEAN": [x, i32([1])]}.get(op, [x])
    with pytest.raises(UnsupportedError, match="scale"):
        reference(op, *operands)


def test_an_activation_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="SIGN_BIT"):
        OPS["CONCATENATION"].parse(
            Fields("CONCATENATION", {"fused_activation_function": Activation.SIGN_BIT.value})
        )


def test_quantizing_rounds_halves_to_the_even_step_and_clamps() -> None:
    """As XNNPACK does, which LiteRT takes by default."""
    fields = {"output_dtype": I8, "output_quantization": Quantization((0.5,), (4,))}
    got = reference("QUANTIZE", f32([0.25, -0.25, 0.75, -0.75, 0.2, 99, -99]), fields=fields)
    np.testing.assert_array_equal(got, i8([4, 4, 6, 2, 4, 127, -128]))


def test_dequantizing_by_channel() -> None:
    quantization = Quantization((0.5, 2.0), (1, -1), axis=1)
    fields = {"input_quantization": quantization}
    got = reference("DEQUANTIZE", i8([[3, 4], [-1, -2]]), fields=fields)
    np.testing.assert_array_equal(got, f32([[1, 10], [-1, -2]]))
    with pytest.raises(ModelError, match="2 scales"):
        _infer("DEQUANTIZE", _operands(((2, 3), I8)), fields)


# FLOOR_DIV of floats on devices whose division is as exact as Vulkan and WGSL ask for: 2.5 units
# in the last place.


_ROWS = 6144


def _operands_floor_div(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    a = rng.uniform(-9, 9, _ROWS)
    b = rng.uniform(0.3, 2, _ROWS) * rng.choice([-1, 1], _ROWS)
    if kind == "huge quotients":
        a *= 10.0 ** rng.uniform(8, 37.0, _ROWS)
    elif kind == "one digit too many":  # whole numbers in between are halves of a unit there
        a = rng.uniform(2**24, 2**26, _ROWS) * rng.choice([-1, 1], _ROWS) * b
    elif kind == "whole quotients":
        b = b.astype(np.float16)
        a = rng.integers(-(2**12), 2**12, _ROWS) * b.astype(np.float64)
    return a.astype(np.float32), b.astype(np.float32)


def _sloppy(divide: Callable[..., Any]) -> Callable[..., Any]:
    rng = np.random.default_rng(6)

    def divided(op: str, a: Any, b: Any) -> Any:
        found = divide(op, a, b)
        if op != "div" or found.dtype.kind != "f":
            return found
        for _ in range(2):
            away = rng.choice(np.float32([-np.inf, 0, np.inf]), found.shape)
            nudged = np.nextafter(found, away)
            found = np.where((away == 0) | ~np.isfinite(found), found, nudged)
        return found

    return divided


@pytest.mark.parametrize(
    "kind", ["huge quotients", "one digit too many", "whole quotients", "usual"]
)
@pytest.mark.parametrize("exact", [True, False], ids=["an exact division", "a sloppy one"])
def test_floored(kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(evaluate, "_divide", _sloppy(evaluate._divide))
    a, b = _operands_floor_div(kind)
    k = Builder("floored", (64, 1, 1))
    one, two = (k.buffer(n, Scalar.F32, 4, "read") for n in ("one", "two"))
    outs = [k.buffer(n, Scalar.F32, 4, "write") for n in ("quotient", "rest")]
    i = k.let(k.global_id(0))
    for which, out in enumerate(outs):
        k.store(out, i, _floored(which, k, k.let(k.load(one, i)), k.let(k.load(two, i))))
    arrays = [a, b, np.zeros_like(a), np.zeros_like(a)]
    interpret(k.build(), (_ROWS // 256, 1, 1), arrays)
    np.testing.assert_array_equal(arrays[3], np.mod(a, b))
    want = np.floor(a.astype(np.float64) / b.astype(np.float64)).astype(np.float32)
    near = np.abs(want) < 2**24
    np.testing.assert_array_equal(arrays[2][near], want[near])
    far = arrays[2] != want
    # Of quotients that a float cannot hold, one in a million may lie too close to a half.
    assert far.sum() <= (0 if near.all() else 1), (a[far], b[far], arrays[2][far], want[far])


# Whole numbers divided by what processors refuse to divide by, on every API; and powers that do
# not fit.


LEAST = -(2**31)
A = np.int32([LEAST, LEAST, 7, -7, LEAST])
B = np.int32([-1, 1, -1, 2, -3])
EXPECTED = {
    "DIV": [LEAST, LEAST, -7, -3, 715827882],  # whole numbers wrap around
    "FLOOR_DIV": [LEAST, LEAST, -7, -4, 715827882],
    "FLOOR_MOD": [0, 0, 0, 1, -2],
}


@pytest.mark.parametrize(
    ("backend", "device"),
    [("cpu_ref", 0), ("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0)],
)
def test_the_smallest_number_over_minus_one(backend: str, device: int) -> None:
    """It does not fit: x86 traps, and a compiler of OpenCL C may make of it what it likes."""
    tensors = [FileTensor(name, A.shape, DType.I32) for name in ("a", "b", *EXPECTED)]
    operators = [OperatorSpec(op, {}, [0, 1], [i]) for i, op in enumerate(EXPECTED, 2)]
    content = write_model(ModelSpec(tensors, operators, [0, 1], [2, 3, 4]))
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        allocate_and_run(it, {0: A, 1: B})
        found = {op: it.get_tensor(i).tolist() for i, op in enumerate(EXPECTED, 2)}
    assert found == EXPECTED


def test_powers_that_do_not_fit() -> None:
    """The smallest number, as LiteRT's conversion from a real one gives it on x86."""
    a = np.int32([3, -3, 2, -2, 46341, 46340, 0, -1])
    b = np.int32([25, 23, 31, 31, 2, 2, 0, 5])
    tensors = [FileTensor(name, a.shape, DType.I32) for name in "aby"]
    content = write_model(ModelSpec(tensors, [OperatorSpec("POW", {}, [0, 1], [2])], [0, 1], [2]))
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
    ) as it:
        allocate_and_run(it, {0: a, 1: b})
        assert it.get_tensor(2).tolist() == [LEAST] * 5 + [46340**2, 1, -1]


# References compute in 64 bits where they are given 64 bits: `benchmarks.float64` takes
# what they make then for the truth between two results of 32 bits.


#: What they give changes in steps, which a small change of an operand does not reach.
STEPS = {"CEIL", "FLOOR", "FLOOR_DIV", "ROUND", "SIGN", "ZEROS_LIKE", "FAKE_QUANT",
         "QUANTIZE_AND_DEQUANTIZE", "QUANTIZE_ON_THE_FLY", "QUANTIZED_SOFTMAX",
         "QUANTIZED_TABLE", "ROUND_TO_BF16", "STORED_DIGIT", "STORED_HARD_SWISH", "STORED_PAIR",
         "STORED_PRODUCT",
         "STORED_SUMS", "STORED_TOTAL", "STORED_UNIT"}  # fmt: skip
#: Results of f32 whatever the operands are, which the judge refuses to take for more.
NARROW = {"AudioSpectrogram", "BITCAST", "Landmarks2TransformMatrix", "Mfcc",
       "NON_MAX_SUPPRESSION_V5", "Resampler", "TFLite_Detection_PostProcess", "TransformTensor",
       "TransformTensorBilinear"}  # fmt: skip


def results(op: OpDef, index: int) -> tuple[list[Array], list[Array]] | None:
    """Of a sample's operands with digits beyond f32, and without them; None where it has no
    floats."""
    case = materialize(op, op.samples()[index])
    (node, *_) = case.graph
    rng = np.random.default_rng(0)
    wide: list[Array | None] = []
    for value in node.inputs:
        array = None if value is None else case.arrays.get(value.id, value.data)
        if array is not None and array.dtype == np.float32:
            array = array * (1 + 1e-11 * rng.integers(1, 9, array.shape))
        wide.append(array)
    if not any(a is not None and a.dtype == np.float64 for a in wide):
        return None
    narrow = [
        a if a is None or a.dtype != np.float64 else a.astype(np.float32).astype(np.float64)
        for a in wide
    ]
    found = [
        [a for a in op.reference(node.attrs, operands) if a.dtype.kind == "f"]
        for operands in (wide, narrow)
    ]
    return (found[0], found[1]) if found[0] else None


@pytest.mark.parametrize("name", sorted(set(builtin_ops()) - STEPS - NARROW))
def test_no_digit_is_lost(name: str) -> None:
    op = builtin_ops()[name]
    count = min(len(op.samples()), 4)
    pairs = [pair for i in range(count) if (pair := results(op, i)) is not None]
    if not pairs:
        pytest.skip("no floats go in and come out")
    assert all(a.dtype == np.float64 for wide, _ in pairs for a in wide)
    assert any(
        not np.array_equal(a, b, equal_nan=True)
        for pair in pairs
        for a, b in zip(*pair, strict=True)
    )
