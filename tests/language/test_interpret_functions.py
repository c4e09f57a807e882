"""The interpreter's arithmetic against numbers computed one by one in Python."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import GROUPS, build_table, expected, result_of, table, table_arrays, ulps
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import F16, F32, F32x4, Scalar, Type

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
