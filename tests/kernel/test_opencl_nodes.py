"""Printed OpenCL C, compiled and run, against the kernel interpreter.

Tolerances are those of the OpenCL C specification (full profile, section 7.4), plus what
NumPy's own function may be off where it is not exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cl_runner import ClRunner
from kernel_cases import GROUPS, build_table, result_of, table, table_arrays, ulps
from kernel_programs import PROGRAMS, Program
from tflgpu.kernel import Builder, Kernel, interpret
from tflgpu.kernel.make import binary
from tflgpu.kernel.types import I32, Scalar, Type
from tflgpu_opencl.dialect import OpenCLDialect

_NUMPY_ULP = 4  # of NumPy's transcendental functions of f32


def needs_half_arithmetic(opencl: ClRunner) -> None:
    if not opencl.f16_arithmetic:
        pytest.skip(f"{opencl.device.name} does not compute in f16")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.I32, Scalar.U32], ids=lambda s: s.value)
def test_every_operation(opencl: ClRunner, scalar: Scalar, width: int) -> None:
    _compare_table(opencl, scalar, width)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_operation_in_f16(opencl: ClRunner, width: int) -> None:
    needs_half_arithmetic(opencl)
    _compare_table(opencl, Scalar.F16, width)


def _compare_table(opencl: ClRunner, scalar: Scalar, width: int) -> None:
    cases = table(scalar)
    kernel = build_table(cases, scalar, width)
    arrays, _ = table_arrays(cases, scalar, width, seed=1)
    got = opencl.run(kernel, GROUPS, arrays)
    interpret(kernel, GROUPS, arrays)
    off = {}
    for number, case in enumerate(cases):
        found, want = (result_of(cases, number, a, width) for a in (got, arrays))
        allowed = case.ulp + (_NUMPY_ULP if case.ulp else 0)
        if scalar is Scalar.F16:
            # Computed in f32 and rounded, or by the device's own operator, which the
            # specification has correctly rounded; fma may round twice.
            allowed = 1 if case.ulp else 0
            if case.name == "fma":
                _check_half_fma(found, want)
                continue
        distance = ulps(found, want)
        if distance > allowed:
            off[case.name] = distance
    assert not off


def _check_half_fma(found: np.ndarray, want: np.ndarray) -> None:
    # A product and a sum of f16 round twice; where they cancel, the error is in units of the
    # product, which is below 1024 for these operands: half a unit of it is 0.25.
    assert np.abs(found.astype(np.float64) - want).max() <= 0.25 + np.spacing(np.float16(1024)) / 2


def test_fma_without_fast_hardware(opencl: ClRunner) -> None:
    k = Builder("mad", (1, 1, 1))
    a = k.buffer("a", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    x = k.let(k.load(a, k.global_id(0)))
    k.store(dst, k.global_id(0), k.fma(x, x, 1.0))
    data = np.arange(16, dtype=np.float32)
    dialect = OpenCLDialect(fast_fma=False)
    assert "mad(" in dialect.source(k.build())
    got = opencl.run(k.build(), (4, 1, 1), [data, np.zeros_like(data)], dialect)
    assert np.array_equal(got[1], data * data + 1)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_dot(opencl: ClRunner, width: int) -> None:
    k = Builder("dot", (8, 1, 1))
    a = k.buffer("a", Scalar.F32, 1, "read")
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    x = k.vec([k.load(a, i * width + lane) for lane in range(width)])
    y = k.vec([k.load(a, i * width + lane) for lane in reversed(range(width))])
    k.store(dst, i, k.dot(x, y))
    # Whole numbers: every order of summation gives the same.
    data = np.random.default_rng(0).integers(-99, 99, 8 * width).astype(np.float32)
    rows = data.reshape(8, width)
    got = opencl.run(k.build(), (1, 1, 1), [data, np.zeros(8, np.float32)])
    assert np.array_equal(got[1], (rows * rows[:, ::-1]).sum(1))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(opencl: ClRunner, make: Callable[[], Program]) -> None:
    program = make()
    got = opencl.run(program.kernel, program.groups, program.arrays)
    for index, want in program.want.items():
        assert np.array_equal(got[index], want)


# Memory: every element type, by vectors and by lanes

STORED = [Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16]


def extremes(scalar: Scalar, count: int) -> np.ndarray:
    """Numbers that a wrong conversion would change: limits, subnormals, negatives."""
    rng = np.random.default_rng(count)
    if scalar.is_float:
        info = np.finfo(scalar.numpy)
        data = rng.normal(0, 4, count).astype(scalar.numpy)
        data[:5] = [info.max, info.min, -0.0, 1.5, np.inf]
        if scalar is Scalar.F16:
            data[5:7] = [info.smallest_subnormal, -info.smallest_subnormal * 3]
        return data
    limits = np.iinfo(scalar.numpy)
    data = rng.integers(limits.min, limits.max, count, endpoint=True).astype(scalar.numpy)
    data[:2] = [limits.min, limits.max]
    return data


def move(scalar: Scalar, width: int, lanes: bool, as_scalar: Scalar | None) -> Kernel:
    k = Builder("move", (4, 1, 1))
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, "write")
    i = k.let(k.global_id(0), "i")
    if lanes:
        for lane in range(width):
            at = i * width + lane
            k.store_lane(dst, at, k.load_lane(src, at, as_scalar))
    else:
        k.store(dst, i, k.load(src, i, as_scalar))
    return k.build()


@pytest.mark.parametrize("lanes", [False, True], ids=["vectors", "lanes"])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("scalar", STORED, ids=lambda s: s.value)
def test_load_and_store(opencl: ClRunner, scalar: Scalar, width: int, lanes: bool) -> None:
    data = extremes(scalar, 12 * width)
    kernel = move(scalar, width, lanes, None)
    got = opencl.run(kernel, (3, 1, 1), [data, np.zeros_like(data)])
    assert got[1].tobytes() == data.tobytes()


@pytest.mark.parametrize("half_values", [False, True], ids=["no_f16", "f16"])
@pytest.mark.parametrize("lanes", [False, True], ids=["vectors", "lanes"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_f16_through_f32(opencl: ClRunner, width: int, lanes: bool, half_values: bool) -> None:
    if half_values:
        needs_half_arithmetic(opencl)
    data = extremes(Scalar.F16, 12 * width)
    kernel = move(Scalar.F16, width, lanes, Scalar.F32)
    dialect = OpenCLDialect(f16_arithmetic=half_values)
    got = opencl.run(kernel, (3, 1, 1), [data, np.zeros_like(data)], dialect)
    assert got[1].tobytes() == data.tobytes()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_f16_store_rounds_to_nearest_even(opencl: ClRunner, width: int) -> None:
    k = Builder("round", (4, 1, 1))
    src = k.buffer("src", Scalar.F32, width, "read")
    dst = k.buffer("dst", Scalar.F16, width, "write")
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    data = np.random.default_rng(0).normal(0, 300, 8 * width).astype(np.float32)
    data[:6] = [2049, 2051, 65519, 65520, 1e-7, -3e-8]
    got = opencl.run(k.build(), (2, 1, 1), [data, np.zeros(data.size, np.float16)])
    with np.errstate(over="ignore"):
        assert got[1].tobytes() == data.astype(np.float16).tobytes()


def test_f16_values_are_moved_chosen_and_compared_without_f16_arithmetic(opencl: ClRunner) -> None:
    k = Builder("choose", (4, 1, 1))
    src, dst = (k.buffer(n, Scalar.F16, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    x = k.let(k.load(src, k.global_id(0)))
    low = k.min(x, 0.25)
    picked = k.select(x > 0.5, x, k.vec([low.lane(i) for i in (1, 0, 3, 2)]))
    k.store(dst, k.global_id(0), k.select(picked.lane(0) < -1, -picked, picked))
    data = extremes(Scalar.F16, 32)
    arrays = [data, np.zeros_like(data)]
    got = opencl.run(k.build(), (2, 1, 1), arrays, OpenCLDialect(f16_arithmetic=False))
    interpret(k.build(), (2, 1, 1), arrays)
    assert np.array_equal(got[1], arrays[1], equal_nan=True)


def test_literals_arrive_exactly(opencl: ClRunner) -> None:
    floats = [0.1, 1 / 3, 1e-38, 3.4028235e38, -0.0, 16777217.0, float("inf"), float("-inf"), 1e-6]
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
    got = opencl.run(k.build(), (1, 1, 1), arrays)
    assert got[0][:-1].tobytes() == np.array(floats, np.float32).tobytes()
    assert np.isnan(got[0][-1])
    assert got[1].tolist() == whole
    assert got[2].tolist() == [2**32 - 1]


def test_constants_of_every_type_and_width(opencl: ClRunner) -> None:
    k = Builder("constants", (1, 1, 1))
    out = k.buffer("out", Scalar.I32, 1, "write")
    at = 0
    for scalar, value in ((Scalar.F32, 3.0), (Scalar.I32, -4), (Scalar.U32, 5)):
        for width in (1, 2, 3, 4):
            total = k.cast(k.const(value, Type(scalar, width)), Scalar.I32)
            k.store(out, at, sum(total.lanes, start=k.i32(0)) + k.global_id(0))
            at += 1
    got = opencl.run(k.build(), (1, 1, 1), [np.zeros(at, np.int32)])
    assert got[0].tolist() == [v * w for v in (3, -4, 5) for w in (1, 2, 3, 4)]


def test_precedence_survives_printing(opencl: ClRunner) -> None:
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
            pool.append(binary(op, a, b))
    for at, expr in enumerate(pool):
        k.store(out, at, expr)
    data = rng.integers(-20, 20, 5).astype(np.int32)
    arrays = [data, np.zeros(len(pool), np.int32)]
    got = opencl.run(k.build(), (1, 1, 1), arrays)
    interpret(k.build(), (1, 1, 1), arrays)
    assert np.array_equal(got[1], arrays[1])


def test_shared_array_of_every_type(opencl: ClRunner) -> None:
    kinds = [Type(Scalar.F32, 3), Type(Scalar.I32, 4), Type(Scalar.U32, 2), I32]
    if opencl.f16_arithmetic:
        kinds += [Type(Scalar.F16, width) for width in (1, 2, 3, 4)]
    for kind in kinds:
        k = Builder("exchange", (4, 1, 1))
        dst = k.buffer("dst", kind.scalar, 1, "write")
        tile = k.shared("tile", kind, 4)
        lane = k.let(k.local_id(0))
        base = k.cast(lane * 10, kind.scalar)
        value = k.vec([base + i for i in range(kind.width)])
        k.store_shared(tile, lane, value)
        k.barrier()
        other = k.let(k.load_shared(tile, (lane + 1) % 4))
        for i, part in enumerate(other.lanes):
            k.store(dst, k.global_id(0) * kind.width + i, part)
        got = opencl.run(k.build(), (1, 1, 1), [np.zeros(4 * kind.width, kind.scalar.numpy)])
        want = [(lane + 1) % 4 * 10 + i for lane in range(4) for i in range(kind.width)]
        assert got[0].tolist() == want
