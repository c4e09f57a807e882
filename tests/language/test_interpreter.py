"""The interpreter's arithmetic against numbers computed one by one in Python."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.language import evaluate
from tflgpu.language.builder import Builder
from tflgpu.language.definitions import definition
from tflgpu.language.evaluate import binary, convert
from tflgpu.language.exact import EXACT, exact
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.guards import GUARDS, guard
from tflgpu.language.interpreter import interpret
from tflgpu.language.make import binary as binary_special
from tflgpu.language.make import call, cast
from tflgpu.language.tree import Call, Const, Expr, Name, Unary
from tflgpu.language.types import BOOL, F16, F32, I32, F32x4, Scalar, Type

from tests.language.kernel_cases import (
    GROUPS,
    build_table,
    expected,
    result_of,
    table,
    table_arrays,
    ulps,
)
from tests.language.kernel_programs import PROGRAMS, ProgramCase

VALUES = [Scalar.F32, Scalar.F16, Scalar.I32, Scalar.U32]


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("scalar", VALUES, ids=lambda s: s.value)
def test_every_operation_on_every_type_and_width(scalar: Scalar, width: int) -> None:
    cases = table(scalar)
    arrays, own = table_arrays(cases, scalar, width)
    interpret(build_table(cases, scalar, width), GROUPS, arrays)
    off = {}
    for number, case in enumerate(cases):
        found = result_of(cases, number, arrays, width)
        # NumPy's own functions of f32 are up to 4 units off; operations that a specification
        # requires to be exact are exact here.
        allowed = 4 if case.ulp > 1 and case.name != "div" else 0
        distance = ulps(found, expected(case, own[number]))
        if distance > allowed:
            off[case.name] = distance
    assert not off


@pytest.mark.parametrize("scalar", VALUES, ids=lambda s: s.value)
def test_the_table_has_every_function(scalar: Scalar) -> None:
    names = {case.name for case in table(scalar)}
    lanewise = {name for name, fn in FUNCTIONS.items() if scalar in fn.takes and not fn.joins_lanes}
    assert names >= lanewise


@pytest.mark.parametrize("kind", [F32, F16], ids=str)
@pytest.mark.parametrize("width", [2, 4])
def test_dot_sums_products_of_lanes(kind: Type, width: int) -> None:
    k = Builder("dot", (1, 1, 1))
    a = k.buffer("a", kind.scalar, width, "read")
    b = k.buffer("b", kind.scalar, width, "read")
    out = k.buffer("out", kind.scalar, 1, "write")
    i = k.global_id(0)
    k.store(out, i, k.dot(k.load(a, i), k.load(b, i)))
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=7 * width).astype(kind.scalar.numpy) for _ in range(2))
    got = np.zeros(7, kind.scalar.numpy)
    interpret(k.build(), (7, 1, 1), [x, y, got])
    want = (x.astype(np.float64) * y.astype(np.float64)).reshape(7, width).sum(1)
    assert np.array_equal(got, want.astype(got.dtype))


def test_round_goes_to_even_and_minus_zero_stays() -> None:
    k = Builder("round", (1, 1, 1))
    a = k.buffer("a", Scalar.F32, 4, "read")
    out = k.buffer("out", Scalar.F32, 4, "write")
    k.store(out, 0, k.call("round", k.load(a, 0)))
    got = np.zeros(4, np.float32)
    interpret(k.build(), (1, 1, 1), [np.float32([0.5, 1.5, 2.5, -0.25]), got])
    assert got.tolist() == [0.0, 2.0, 2.0, 0.0]
    assert np.signbit(got[3])


@pytest.mark.parametrize(
    ("scalar", "values"),
    [
        (Scalar.I8, [-128, -1, 0, 127]),
        (Scalar.U8, [0, 1, 200, 255]),
        (Scalar.I16, [-32768, -1, 0, 32767]),
    ],
)
def test_small_integers_widen_when_loaded_and_narrow_when_stored(
    scalar: Scalar, values: list[int]
) -> None:
    k = Builder("small", (1, 1, 1))
    src = k.buffer("src", scalar, 4, "read")
    wide = k.buffer("wide", Scalar.I32, 4, "write")
    back = k.buffer("back", scalar, 1, "write")
    k.store(wide, 0, k.load(src, 0) * 1000)
    for lane in range(4):
        k.store(back, lane, k.load_lane(src, 3 - lane))
    source = np.array(values, scalar.numpy)
    got, reverse = np.zeros(4, np.int32), np.zeros(4, scalar.numpy)
    interpret(k.build(), (1, 1, 1), [source, got, reverse])
    assert got.tolist() == [v * 1000 for v in values]
    assert reverse.tolist() == values[::-1]


@pytest.mark.parametrize(
    ("scalar", "value"), [(Scalar.I8, 128), (Scalar.U8, -1), (Scalar.I16, 40000)]
)
def test_a_small_integer_that_does_not_fit_is_refused(scalar: Scalar, value: int) -> None:
    k = Builder("narrow", (1, 1, 1))
    out = k.buffer("out", scalar, 1, "write")
    k.store(out, 0, k.i32(value))
    with pytest.raises(KernelError, match=f"{value} stored in out of {scalar.value}"):
        interpret(k.build(), (1, 1, 1), [np.zeros(1, scalar.numpy)])


def test_f16_is_read_as_f32_and_stored_from_f32_rounding_to_even() -> None:
    k = Builder("half", (1, 1, 1))
    src = k.buffer("src", Scalar.F16, 4, "read")
    dst = k.buffer("dst", Scalar.F16, 4, "write")
    third = k.load(src, 0, Scalar.F32) / 3.0
    assert third.type == F32x4
    k.store(dst, 0, third)
    x = np.array([1, 2048, 65504, 6e-8], np.float16)
    got = np.zeros(4, np.float16)
    interpret(k.build(), (1, 1, 1), [x, got])
    assert np.array_equal(got, (x.astype(np.float32) / np.float32(3)).astype(np.float16))


# The interpreter's control flow and memory, on whole programs.


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program_gives_what_numpy_gives(make: Callable[[], ProgramCase], races: bool) -> None:
    program = make()
    arrays = [array.copy() for array in program.arrays]
    interpret(program.kernel, program.groups, arrays, races=races)
    for index, want in program.want.items():
        assert np.array_equal(arrays[index], want)


def test_its_arrays_do_not_wait_for_the_collector() -> None:
    cases = table(Scalar.F32)
    arrays, _ = table_arrays(cases, Scalar.F32, 1)
    seen = [weakref.ref(array) for array in arrays]
    gc.disable()
    try:
        interpret(build_table(cases, Scalar.F32, 1), GROUPS, arrays)
        del arrays
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


def test_a_grid_larger_than_a_batch() -> None:
    count = 100_003
    k = Builder("scale", (64, 1, 1))
    src, dst = k.buffer("src", Scalar.F32, 1, "read"), k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < count):
        k.store(dst, i, k.load(src, i) * 3.0)
    x = np.arange(count, dtype=np.float32)
    out = np.zeros(count, np.float32)
    interpret(k.build(), (-(-count // 64), 1, 1), [x, out])
    assert np.array_equal(out, x * 3)


def test_an_empty_dispatch_does_nothing() -> None:
    k = Builder("fill", (64, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    k.store(dst, k.global_id(0), k.f32(1))
    out = np.zeros(64, np.float32)
    interpret(k.build(), (0, 1, 1), [out])
    assert not out.any()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "kernel fill: 0 arrays for 1 buffers"),
        ([np.zeros(4, np.float64)], "wants flat f32 in multiples of 4, got float64"),
        ([np.zeros(6, np.float32)], r"multiples of 4, got float32\[6\]"),
        ([np.zeros((2, 4), np.float32)], r"flat f32 in multiples of 4, got float32\[2, 4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: list[np.ndarray], message: str) -> None:
    k = Builder("fill", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    k.store(dst, k.global_id(0), k.f32(1, 4))
    with pytest.raises(KernelError, match=message):
        interpret(k.build(), (1, 1, 1), arrays)


# Functions that the language defines itself, against numbers computed in f64. The interpreter
# computes what a definition says, operation by operation, in f32. What printers make of
# definitions is held by the tables that every device runs.


Array = np.ndarray[Any, Any]
_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 3e38, 1e-30, 0.5)
_EXACT: dict[str, Callable[..., Any]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "atan2": np.arctan2, "pow": np.power,
}  # fmt: skip


def run(fn: str, width: int, *operands: Array) -> Array:
    """A definition's lets between loads and a store."""
    found = definition(fn, width)
    k = Builder(fn, (1, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", Scalar.F32, width, "read") for p in found.parameters]
    dst = k.buffer("dst", Scalar.F32, width, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        value = k.let(k.load(source, k.global_id(0)), parameter.ident)
        assert isinstance(value, Name)
        assert value.ident == parameter.ident
    for let in found.body:
        k.emit(let)
    last = found.body[-1]
    k.store(dst, k.global_id(0), Name(F32.with_width(width), last.ident))
    result = np.zeros_like(operands[0])
    with np.errstate(all="ignore"):
        interpret(k.build(), (len(result) // width, 1, 1), [*operands, result])
    return result


def ulps_definitions(found: Array, want: Array) -> float:
    """The largest distance, in units of the last place of the f32 that is meant."""
    rounded = want.astype(np.float32)
    assert np.array_equal(np.isfinite(found), np.isfinite(rounded))
    good = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[good])).astype(np.float64)
    return float((np.abs(found[good].astype(np.float64) - want[good]) / unit).max())


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("fn", "least", "most", "allowed"),
    [("erf", -5, 5, 4), ("tanh", -12, 12, 4), ("sin", -3, 3, 4), ("cos", -1.5, 1.5, 4)],
)
def test_functions_of_one_number(
    fn: str, least: float, most: float, allowed: float, width: int
) -> None:
    x = np.linspace(least, most, 4000).astype(np.float32)
    assert ulps_definitions(run(fn, width, x), _EXACT[fn](x.astype(np.float64))) <= allowed


@pytest.mark.parametrize("fn", ["sin", "cos"])
def test_waves_far_from_zero(fn: str) -> None:
    x = np.random.default_rng(1).uniform(-(2.0**15), 2.0**15, 4000).astype(np.float32)
    assert np.abs(run(fn, 1, x) - _EXACT[fn](x.astype(np.float64))).max() < 3e-7
    beyond = np.float32([1e6, -3e7, 1e20, 3e38, -2e38, 1e10])
    assert (np.abs(run(fn, 1, beyond)) <= 1).all()


def test_angles() -> None:
    x, y = np.random.default_rng(2).normal(0, 5, (2, 4000)).astype(np.float32)
    want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    assert ulps_definitions(run("atan2", 2, y, x), want) <= 6


def test_powers() -> None:
    rng = np.random.default_rng(3)
    x = np.abs(rng.normal(0, 3, 4000)).astype(np.float32) + np.float32(0.01)
    y = rng.normal(0, 3, 4000).astype(np.float32)
    assert (
        ulps_definitions(run("pow", 1, x, y), np.power(x.astype(np.float64), y.astype(np.float64)))
        <= 4
    )


@pytest.mark.parametrize("fn", _EXACT)
def test_special_numbers(fn: str) -> None:
    """NaN, infinities, zeros and their signs, in all pairs; the last bits are the others'
    matter."""
    pairs = np.array(np.meshgrid(_SPECIAL, _SPECIAL)).reshape(2, -1).astype(np.float32)
    operands = [p.copy() for p in pairs[: len(definition(fn, 1).parameters)]]
    if fn in ("sin", "cos"):  # which are only sure to be in [-1, 1] so far out
        operands = [np.where(np.abs(x) == np.float32(3e38), np.float32(7), x) for x in operands]
    if fn == "pow":  # a zero's sign, and that of what is infinite because of it, are open
        operands = [np.where(x == 0, np.float32(0), x) for x in operands]
    with np.errstate(all="ignore"):
        want = _EXACT[fn](*(x.astype(np.float64) for x in operands)).astype(np.float32)
    found = run(fn, 1, *operands)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)
    signed = (want != 0) & ~np.isnan(want)
    assert np.array_equal(np.signbit(found[signed]), np.signbit(want[signed]))


# What the language writes where APIs leave a result open, held against what the language
# computes.


COUNT = 4096


def _back(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


WANTED: dict[str, tuple[Scalar, Callable[..., Array]]] = {
    "isnan": (Scalar.F32, np.isnan),
    "to_i32": (Scalar.F32, lambda x: convert(x, Scalar.I32)),
    "to_u32": (Scalar.F32, lambda x: convert(x, Scalar.U32)),
    "to_f16_and_back": (Scalar.F32, _back),
    "rem": (Scalar.I32, lambda a, b: binary("rem", a, b)),
}


def test_each_is_here() -> None:
    assert set(WANTED) == set(EXACT)


def _operands(scalar: Scalar, count: int) -> list[Array]:
    rng = np.random.default_rng(5)
    words = [rng.integers(0, 2**32, COUNT, np.uint32) for _ in range(count)]
    if scalar is Scalar.I32:
        low, high = words[0].view(np.int32), words[1].view(np.int32) >> 20
        return [low, np.where(high == 0, 1, high).astype(np.int32)]
    # Every exponent, the halves between two f16, and the ends of the integers' ranges.
    halves = (rng.integers(-4096, 4096, 512) * 2.0**-25).astype(np.float32)
    ends = np.array([2.0**31, 2.0**32], np.float32)
    ends = np.concatenate([ends, np.nextafter(ends, np.float32(0)), -ends, [65504, 65519, 65520]])
    found = words[0].view(np.float32)
    found[: halves.size] = halves
    found[512 : 512 + ends.size] = ends
    found[600:604] = np.nan, np.inf, -np.inf, -0.0
    return [found]


@pytest.mark.parametrize("name", EXACT)
def test_it_is_what_the_language_says(name: str) -> None:
    scalar, wanted = WANTED[name]
    found = exact(name, Type(scalar, 4))
    operands = _operands(scalar, len(found.parameters))
    k = Builder(name, (64, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", scalar, 4, "read") for p in found.parameters]
    result = found.result.scalar
    dst = k.buffer("dst", Scalar.I32 if result is Scalar.BOOL else result, 4, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        k.let(k.load(source, k.global_id(0)), parameter.ident)
    for let in found.body:
        k.emit(let)
    value = Name(found.result, found.body[-1].ident)
    k.store(dst, k.global_id(0), k.cast(value, Scalar.I32) if result is Scalar.BOOL else value)
    got = np.zeros(COUNT, dst.scalar.numpy)
    with np.errstate(all="ignore"):
        interpret(k.build(), (COUNT // 256, 1, 1), [*operands, got])
        want = wanted(*operands).astype(got.dtype)
    if want.dtype.kind == "f":
        assert (np.isnan(want) == np.isnan(got)).all()
        got, want = (np.where(np.isnan(a), 0, a).astype(np.float32) for a in (got, want))
    assert got.tobytes() == want.tobytes()


# Operations that keep NaN, on a machine whose own lose it: it is asked of nothing but the bits.


_VALUES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, 6e4, -3.0)


def _either(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, fn(a, b))


GUARDS_WANTED: dict[str, Callable[..., Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "min": _either(np.fmin),
    "max": _either(np.fmax),
    "at_most": lambda x, limit: np.where(np.isnan(x), x, np.fmin(x, limit)),
    "at_least": lambda x, limit: np.where(np.isnan(x), x, np.fmax(x, limit)),
    "max_min": lambda x, a, b: np.where(np.isnan(x), x, np.fmin(np.fmax(x, a), b)),
    "min_max": lambda x, a, b: np.where(np.isnan(x), x, np.fmax(np.fmin(x, a), b)),
    "sign": np.sign,
    "log": np.log,
    "sqrt": np.sqrt,
}
_LIMITED = {"at_most": (2.5,), "at_least": (0.0,), "max_min": (0.0, 2.5), "min_max": (2.5, 0.0)}


def test_guards_each_is_here() -> None:
    assert set(GUARDS_WANTED) == set(GUARDS)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extremes pass over a NaN, comparisons with one hold, its sign is 0, and no number is below
    what has a logarithm or a root."""
    module = import_module("tflgpu.language.expressions")
    wrong: dict[str, Callable[..., Any]] = {
        "min": np.fmin, "max": np.fmax, "sign": lambda x: np.nan_to_num(np.sign(x)),
        "log": lambda x: np.log(np.abs(x)), "sqrt": lambda x: np.sqrt(np.abs(x)),
        "lt": lambda a, b: ~(a >= b), "le": lambda a, b: ~(a > b),
        "gt": lambda a, b: ~(a <= b), "ge": lambda a, b: ~(a < b),
    }  # fmt: skip

    def binary(op: str, a: Array, b: Array) -> Array:
        if op in wrong and a.dtype.kind == "f":
            return np.asarray(wrong[op](a, b))
        return evaluate.binary(op, a, b)

    def call(fn: str, args: Any) -> Array:
        if fn in wrong:
            return np.asarray(wrong[fn](*args)).astype(args[0].dtype)
        return evaluate.call(fn, args)

    monkeypatch.setattr(module, "binary", binary)
    monkeypatch.setattr(module, "call", call)


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.F16], ids=lambda s: s.value)
@pytest.mark.parametrize("name", GUARDS)
def test_nan_is_kept(name: str, scalar: Scalar) -> None:
    pairs = np.array(np.meshgrid(_VALUES, _VALUES)).reshape(2, -1).astype(scalar.numpy)
    found = guard(name, Type(scalar, 2))
    operands = [*pairs[: len(found.parameters)]]
    if name in _LIMITED:
        operands = [pairs[0], *(np.full_like(pairs[0], limit) for limit in _LIMITED[name])]
    k = Builder(name, (1, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", scalar, 2, "read") for p in found.parameters]
    gives_truth = found.result.scalar is Scalar.BOOL
    dst = k.buffer("dst", Scalar.I32 if gives_truth else scalar, 2, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        k.let(k.load(source, k.global_id(0)), parameter.ident)
    for let in found.body:
        k.emit(let)
    value = Name(found.result, found.body[-1].ident)
    k.store(dst, k.global_id(0), k.cast(value, Scalar.I32) if gives_truth else value)
    got = np.zeros(pairs.shape[1], dst.scalar.numpy)
    with np.errstate(all="ignore"):
        interpret(k.build(), (len(got) // 2, 1, 1), [*operands, got])
        want = np.asarray(GUARDS_WANTED[name](*operands)).astype(got.dtype)
    np.testing.assert_array_equal(got, want)


# What the language makes of NaN and infinities, by the interpreter that defines it.


NAN, INF = math.nan, math.inf


def evaluate_special(expr: Expr) -> list[float | bool]:
    """The lanes of an expression of constants."""
    k = Builder("constants", (1, 1, 1))
    width = expr.type.width
    scalar = Scalar.I32 if expr.type.scalar is Scalar.BOOL else expr.type.scalar
    out = k.buffer("out", scalar, width, "write")
    k.store(out, 0, k.cast(expr, scalar))
    got = np.zeros(width, scalar.numpy)
    interpret(k.build(), (1, 1, 1), [got])
    return got.tolist()


@pytest.mark.parametrize("kind", [F32, F16, F32x4], ids=str)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(("a", "b"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, INF), (-INF, NAN)])
def test_an_extreme_is_nan_if_either_operand_is(op: str, kind: Type, a: float, b: float) -> None:
    found = evaluate_special(binary_special(op, Const(kind, a), Const(kind, b)))
    assert len(found) == kind.width
    assert all(math.isnan(lane) for lane in found)


@pytest.mark.parametrize(
    ("op", "want"),
    [("lt", 0), ("le", 0), ("gt", 0), ("ge", 0), ("eq", 0), ("ne", 1)],
)
def test_only_ne_holds_for_a_nan(op: str, want: int) -> None:
    for a, b in ((NAN, 1.0), (1.0, NAN), (NAN, NAN)):
        assert evaluate_special(binary_special(op, Const(F32, a), Const(F32, b))) == [want]


def test_whether_a_value_differs_from_itself_asks_for_a_nan() -> None:
    """A compiler that takes it that there are no NaNs would say that it never does."""
    for x in (Name(F32, "x"), Name(F32x4, "x"), call("exp", Name(F16, "x"))):
        differs, equals = x.ne(x), x.eq(x)
        assert isinstance(differs, Call)
        assert differs.fn == "isnan"
        assert differs.type == BOOL.with_width(x.type.width)
        assert isinstance(equals, Unary)
        assert equals.op == "not"
    assert evaluate_special(call("isnan", Const(F32, NAN))) == [1]
    assert evaluate_special(call("isnan", Const(F16, INF))) == [0]


def test_isnan_is_of_floats() -> None:
    with pytest.raises(KernelError, match="isnan of i32"):
        call("isnan", Name(I32, "n"))


def test_a_clamp_keeps_a_nan() -> None:
    k = Builder("clamp", (1, 1, 1))
    assert math.isnan(evaluate_special(k.clamp(Const(F32, NAN), -1.0, 1.0))[0])
    assert evaluate_special(k.clamp(Const(F32, -INF), -1.0, 1.0)) == [-1]


def test_constants_are_converted_as_values_are() -> None:
    for value, scalar, want in (
        (NAN, Scalar.I32, 0), (INF, Scalar.I32, 2**31 - 1), (-INF, Scalar.U32, 0),
        (65520.0, Scalar.F16, INF), (-1e39, Scalar.F16, -INF), (NAN, Scalar.BOOL, True),
    ):  # fmt: skip
        folded = cast(Const(F32, value), scalar)
        assert isinstance(folded, Const)
        assert folded.value == want
    folded = cast(Const(F32, NAN), Scalar.F16)
    assert isinstance(folded, Const)
    assert math.isnan(folded.value)
