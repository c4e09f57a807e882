"""Printed WGSL, compiled and run, against the kernel interpreter.

Tolerances are those of the WebGPU Shading Language (section "Floating Point Accuracy"), plus what
NumPy's own function may be off where it is not exact; for what WGSL leaves to drivers but this
backend writes out itself (erf, tanh), those of `kernel_cases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_cases import GROUPS, Case, build_table, operands, result_of, table, table_arrays, ulps
from kernel_programs import PROGRAMS, Program
from tflgpu.errors import KernelError
from tflgpu.kernel import Builder, interpret, make
from tflgpu.kernel.types import I32, Scalar, Type

_NUMPY_ULP = 4  # of NumPy's transcendental functions of f32


def needs_f16(runner: Any, scalar: Scalar) -> None:
    if scalar is Scalar.F16 and not runner.f16:
        pytest.skip(f"{runner.name} has no shader-f16")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "scalar", [Scalar.F32, Scalar.F16, Scalar.I32, Scalar.U32], ids=lambda s: s.value
)
def test_every_operation(runner: Any, scalar: Scalar, width: int) -> None:
    needs_f16(runner, scalar)
    cases = table(scalar)
    kernel = build_table(cases, scalar, width)
    arrays, own = table_arrays(cases, scalar, width, seed=1)
    got = runner.run(kernel, GROUPS, arrays)
    interpret(kernel, GROUPS, arrays)
    off = {}
    for number, case in enumerate(cases):
        found, want = (result_of(cases, number, a, width) for a in (got, arrays))
        if case.name in _LOOSE:
            at = _first_beyond(_LOOSE[case.name], own[number], found, want)
            if at is not None:
                off[case.name] = (found[at], want[at], [a[at] for a in own[number]])
        elif (distance := ulps(found, want)) > _allowed(case, scalar):
            off[case.name] = distance
    assert not off


def _first_beyond(
    bound: Callable[..., Any], own: list[np.ndarray], found: np.ndarray, want: np.ndarray
) -> int | None:
    eps = float(np.finfo(want.dtype).eps)
    with np.errstate(all="ignore"):
        allowed = bound(eps, *(a.astype(np.float64) for a in own))
        # One unit more, in which the result itself is rounded, and NumPy's part.
        allowed = allowed + (1 + _NUMPY_ULP) * np.spacing(np.abs(want)).astype(np.float64)
        distance = np.abs(found.astype(np.float64) - want.astype(np.float64))
    wrong = np.flatnonzero((found != want) & ~(distance <= allowed))
    return int(wrong[0]) if wrong.size else None


def _allowed(case: Case, scalar: Scalar) -> float:
    if scalar is Scalar.F16 and case.name != "div":  # which WGSL allows 2.5 units, as in f32
        return 1 if case.ulp else 0  # computed in f32 and rounded
    return case.ulp + (_NUMPY_ULP if case.ulp else 0)


_F32 = 2.0**-23

#: Functions whose error WGSL bounds otherwise than by units of the result: an absolute bound, from
#: the unit of 1 in the lanes' type (all but fma are computed in f32) and the operands.
_LOOSE: dict[str, Callable[..., Any]] = {
    "exp": lambda eps, x: (3 + 2 * np.abs(x)) * np.exp(x) * _F32,
    "log": lambda eps, x: np.where((x >= 0.5) & (x <= 2), 2.0**-21, 3 * np.abs(np.log(x)) * _F32),
    # On [-pi, pi] only; further out an error grows with the argument's own unit.
    "sin": lambda eps, x: 2.0**-11 + np.abs(x) * _F32,
    "cos": lambda eps, x: 2.0**-11 + np.abs(x) * _F32,
    "atan2": lambda eps, y, x: 4096 * np.abs(np.arctan2(y, x)) * _F32,
    # As exp2(y * log2(x)): 3 + 2|t| of the result, and the error of t, in which log2 has 3 units
    # or 2**-21.
    "pow": lambda eps, x, y: (
        np.power(x, y)
        * (
            (3 + 2 * np.abs(y * np.log2(x))) * _F32
            + np.abs(y) * np.maximum(2.0**-21, 4 * np.abs(np.log2(x)) * _F32)
        )
    ),
    # x * y + z in two roundings.
    "fma": lambda eps, a, b, c: np.abs(a * b) * eps,
}  # fmt: skip


def test_dot_of_whole_numbers(runner: Any) -> None:
    for width in (2, 3, 4):
        k = Builder("dots", (8, 1, 1))
        a = k.buffer("a", Scalar.F32, 1, "read")
        dst = k.buffer("dst", Scalar.F32, 1, "write")
        i = k.let(k.global_id(0))
        x = k.vec([k.load(a, i * width + lane) for lane in range(width)])
        y = k.vec([k.load(a, i * width + lane) for lane in reversed(range(width))])
        k.store(dst, i, k.dot(x, y))
        data = np.random.default_rng(0).integers(-99, 99, 8 * width).astype(np.float32)
        rows = data.reshape(8, width)
        got = runner.run(k.build(), (1, 1, 1), [data, np.zeros(8, np.float32)])
        assert np.array_equal(got[1], (rows * rows[:, ::-1]).sum(1))


@pytest.mark.parametrize("writable", [False, True], ids=["as declared", "all writable"])
@pytest.mark.parametrize("make_program", PROGRAMS, ids=lambda make: make.__name__)
def test_program(runner: Any, make_program: Callable[[], Program], writable: bool) -> None:
    program = make_program()
    got = runner.run(program.kernel, program.groups, program.arrays, writable=writable)
    for index, want in program.want.items():
        assert np.array_equal(got[index], want)


# Memory

STORED = [Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16]


def extremes(scalar: Scalar, count: int) -> np.ndarray:
    """Numbers that a wrong conversion would change: limits, subnormals of f16, negatives."""
    rng = np.random.default_rng(count)
    if scalar.is_float:
        info = np.finfo(scalar.numpy)
        data = rng.normal(0, 4, count).astype(scalar.numpy)
        data[:5] = [info.max, info.min, -0.0, 1.5, np.inf]
        return data
    limits = np.iinfo(scalar.numpy)
    data = rng.integers(limits.min, limits.max, count, endpoint=True).astype(scalar.numpy)
    data[:2] = [limits.min, limits.max]
    return data


@pytest.mark.parametrize("as_scalar", [None, Scalar.F32], ids=["own type", "as f32"])
@pytest.mark.parametrize("lanes", [False, True], ids=["vectors", "lanes"])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("scalar", STORED, ids=lambda s: s.value)
def test_load_and_store(
    runner: Any, scalar: Scalar, width: int, lanes: bool, as_scalar: Scalar | None
) -> None:
    needs_f16(runner, scalar)
    if as_scalar is not None and not scalar.is_float:
        pytest.skip("only floats are read as f32")
    data = extremes(scalar, 12 * width)
    k = Builder("move", (4, 1, 1))
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, "write")
    i = k.let(k.global_id(0), "i")
    if lanes:
        for lane in range(width):
            at = i * width + lane
            k.store_lane(dst, at, k.load_lane(src, at, as_scalar))
    else:
        k.store(dst, i, k.load(src, i, as_scalar))
    got = runner.run(k.build(), (3, 1, 1), [data, np.zeros_like(data)])
    assert got[1].tobytes() == data.tobytes()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_f16_store_rounds_to_nearest_even(runner: Any, width: int) -> None:
    needs_f16(runner, Scalar.F16)
    k = Builder("round_off", (4, 1, 1))
    src = k.buffer("src", Scalar.F32, width, "read")
    dst = k.buffer("dst", Scalar.F16, width, "write")
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    data = np.random.default_rng(0).normal(0, 300, 8 * width).astype(np.float32)
    data[:4] = [2049, 2051, 65519, 65520]
    got = runner.run(k.build(), (2, 1, 1), [data, np.zeros(data.size, np.float16)])
    with np.errstate(over="ignore"):
        assert got[1].tobytes() == data.astype(np.float16).tobytes()


@pytest.mark.parametrize("scalar", [Scalar.I8, Scalar.U8, Scalar.I16], ids=lambda s: s.value)
def test_small_integers_in_memory_are_refused(scalar: Scalar) -> None:
    from tflgpu_wgpu.dialect import WgslDialect

    k = Builder("bytes", (4, 1, 1))
    src, dst = k.buffer("src", scalar, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    with pytest.raises(KernelError, match=rf"kernel bytes: buffer src of {scalar.value}"):
        WgslDialect(f16=True).source(k.build())


def test_f16_without_the_feature_is_refused() -> None:
    from tflgpu_wgpu.dialect import WgslDialect

    k = Builder("halves", (4, 1, 1))
    src, dst = (k.buffer(n, Scalar.F16, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    with pytest.raises(KernelError, match=r"kernel halves: f16.*use precision F32"):
        WgslDialect(f16=False).source(k.build())
    assert WgslDialect(f16=True).source(k.build()).startswith("enable f16;")


# Literals, constants and precedence


def test_literals_arrive_exactly(runner: Any) -> None:
    floats = [0.1, 1 / 3, 1.2e-38, 3.4028235e38, -0.0, 16777217.0, np.inf, -np.inf, 1e-6]
    whole = [-(2**31), 2**31 - 1, 0, -1]
    k = Builder("literals", (1, 1, 1))
    f = k.buffer("f", Scalar.F32, 1, "write")
    i = k.buffer("i", Scalar.I32, 1, "write")
    u = k.buffer("u", Scalar.U32, 1, "write")
    for at, number in enumerate([*floats, float("nan")]):
        k.store(f, at, k.f32(number))
    for at, value in enumerate(whole):
        k.store(i, at, k.i32(value))
    k.store(u, 0, k.const(2**32 - 1, Type(Scalar.U32)))
    arrays = [np.zeros(10, np.float32), np.zeros(4, np.int32), np.zeros(1, np.uint32)]
    got = runner.run(k.build(), (1, 1, 1), arrays)
    assert got[0][:-1].tobytes() == np.array(floats, np.float32).tobytes()
    assert np.isnan(got[0][-1])
    assert got[1].tolist() == whole
    assert got[2].tolist() == [2**32 - 1]


def test_half_literals_arrive_exactly(runner: Any) -> None:
    needs_f16(runner, Scalar.F16)
    numbers = np.array([0.1, 65504, -65504, 6.1e-5, 1 / 3, np.inf, -np.inf, -0.0], np.float16)
    k = Builder("literals", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F16, 1, "write")
    for at, number in enumerate(numbers.tolist()):
        k.store(dst, at, k.const(number, Type(Scalar.F16)))
    got = runner.run(k.build(), (1, 1, 1), [np.zeros(len(numbers), np.float16)])
    assert got[0].tobytes() == numbers.tobytes()


@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.I32, Scalar.U32], ids=lambda s: s.value)
def test_operations_on_constants_never_fail_to_compile(runner: Any, scalar: Scalar) -> None:
    """Which WGSL evaluates, and refuses where they overflow."""
    cases = [case for case in table(scalar) if case.domain in ("any", "huge", "divisor", "shift")]
    lanes = 4
    k = Builder("constants", (1, 1, 1))
    results = sorted({case.result for case in cases}, key=lambda s: s.value)
    targets = {s: k.buffer(f"out_{s.value}", s, 4, "write") for s in results}
    for number, case in enumerate(cases):
        arrays = operands(case, scalar, 97, seed=3)
        args = [
            k.vec([make.wrap(value, Type(scalar)) for value in array[:lanes].tolist()])
            for array in arrays
        ]
        k.store(targets[case.result], number, case.build(k, *args))
    out = [np.zeros(len(cases) * lanes, s.numpy) for s in results]
    want = [a.copy() for a in out]
    got = runner.run(k.build(), (1, 1, 1), out)
    interpret(k.build(), (1, 1, 1), want)
    for found, expected in zip(got, want, strict=True):
        assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


def test_precedence_survives_printing(runner: Any) -> None:
    rng = np.random.default_rng(7)
    k = Builder("precedence", (1, 1, 1))
    src = k.buffer("src", Scalar.I32, 1, "read")
    out = k.buffer("out", Scalar.I32, 1, "write")
    pool = [k.load(src, i) for i in range(5)]
    for _ in range(400):
        a, b = (pool[i] for i in rng.integers(0, len(pool), 2))
        op = rng.choice(["add", "sub", "mul", "and", "or", "xor", "neg", "select", "shl", "lt"])
        if op == "neg":
            pool.append(-a)
        elif op == "select":
            pool.append(k.select((a < b) | ~(b < 0) & a.eq(1), a - b, b))
        elif op == "lt":
            pool.append(k.cast((a < b).ne(a > 3), Scalar.I32))
        elif op == "shl":
            pool.append((a << (b & 7)) >> 2)
        else:
            pool.append(make.binary(op, a, b))
    for at, expr in enumerate(pool):
        k.store(out, at, expr)
    data = rng.integers(-20, 20, 5).astype(np.int32)
    arrays = [data, np.zeros(len(pool), np.int32)]
    got = runner.run(k.build(), (1, 1, 1), arrays)
    interpret(k.build(), (1, 1, 1), arrays)
    assert np.array_equal(got[1], arrays[1])


def test_remainders_of_negative_numbers_avoid_the_operator() -> None:
    """Vulkan leaves what `%` becomes undefined for them; ids and sizes keep the operator."""
    from tflgpu_wgpu.dialect import WgslDialect

    k = Builder("remainders", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0), "i")
    with k.loop(0, 3, name="turn") as turn:
        at = k.let((i * 3 + turn) % 8, "at")
        k.store(dst, i * 3 + turn, k.load(src, at) % 5 + (at - 7) % 2)
    text = WgslDialect().source(k.build())
    assert "let at: i32 = (i * 3 + turn) % 8;" in text
    assert "rem_1(src[at], 5) + rem_1(at - 7, 2)" in text


def test_comparisons_among_arguments_are_no_template_list() -> None:
    """``select(a, b < c, d > e)`` would read as ``b<c, d>(e)``."""
    from tflgpu_wgpu.dialect import WgslDialect

    k = Builder("chosen", (1, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    x, y = k.let(k.load(src, 0), "x"), k.let(k.load(src, 1), "y")
    k.store(dst, 0, k.cast(k.select(x.eq(3), x < y, y > x), Scalar.I32))
    assert "select((y > x), (x < y), (x == 3))" in WgslDialect().source(k.build())


def test_shared_array_of_every_type(runner: Any) -> None:
    for kind in (Type(Scalar.F32, 3), Type(Scalar.I32, 4), Type(Scalar.U32, 2), I32):
        k = Builder("exchange", (4, 1, 1))
        dst = k.buffer("dst", kind.scalar, 1, "write")
        tile = k.shared("tile", kind, 4)
        lane = k.let(k.local_id(0))
        base = k.cast(lane * 10, kind.scalar)
        value = base if kind.width == 1 else k.vec([base + i for i in range(kind.width)])
        k.store_shared(tile, lane, value)
        k.barrier()
        other = k.let(k.load_shared(tile, (lane + 1) % 4))
        for i, part in enumerate(other.lanes):
            k.store(dst, k.global_id(0) * kind.width + i, part)
        got = runner.run(k.build(), (1, 1, 1), [np.zeros(4 * kind.width, kind.scalar.numpy)])
        want = [(lane + 1) % 4 * 10 + i for lane in range(4) for i in range(kind.width)]
        assert got[0].tolist() == want
