"""Printed WGSL: functions to the accuracy that WebGPU promises, what WGSL refuses, what it reads
otherwise. Level 1 of the conformance suite runs every node of the kernel language.

Tolerances are those of the WebGPU Shading Language (section "Floating Point Accuracy"), plus what
NumPy's own function may be off where it is not exact; for what WGSL leaves to drivers but this
backend writes out itself (erf, tanh, sin, cos, atan2), those of `kernel_cases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.language import make
from tflgpu.language.builder import Builder
from tflgpu.language.defining import lines_of_function
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar, Type
from tflgpu_wgpu.dialect import WgslDialect, _WgslPrinter

from tests.language.kernel_cases import (
    NodeCase,
    operands,
    table,
)
from tests.language.kernel_programs import PROGRAMS, ProgramCase
from tests.language.node_tables import LOOSE, NUMPY_ULP, wrong_functions


def needs_f16(runner: Any, scalar: Scalar) -> None:
    if scalar is Scalar.F16 and not runner.f16:
        pytest.skip(f"{runner.name} has no shader-f16")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "scalar", [Scalar.F32, Scalar.F16, Scalar.I32, Scalar.U32], ids=lambda s: s.value
)
def test_every_operation(runner: Any, scalar: Scalar, width: int) -> None:
    needs_f16(runner, scalar)
    assert not wrong_functions(runner, scalar, width, LOOSE, _allowed)


def _allowed(case: NodeCase, scalar: Scalar) -> float:
    if scalar is Scalar.F16 and case.name != "div":  # which WGSL allows 2.5 units, as in f32
        return 1 if case.ulp else 0  # computed in f32 and rounded
    return case.ulp + (NUMPY_ULP if case.ulp else 0)


@pytest.mark.parametrize("make_program", PROGRAMS, ids=lambda make: make.__name__)
def test_program_with_every_buffer_writable(
    runner: Any, make_program: Callable[[], ProgramCase]
) -> None:
    program = make_program()
    got = runner.run(program.kernel, program.groups, program.arrays, writable=True)
    for index, want in program.want.items():
        assert np.array_equal(got[index], want)


# What WGSL has not


@pytest.mark.parametrize("scalar", [Scalar.I8, Scalar.U8, Scalar.I16], ids=lambda s: s.value)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("access", ["write", "read_write"])
def test_small_integers_lie_in_words(runner: Any, scalar: Scalar, width: int, access: str) -> None:
    """Neighbours store into one word; what none of them stores stays."""
    count = 61
    k = Builder("small", (64, 1, 1))
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, access)
    i = k.let(k.global_id(0), "i")
    with k.if_(i < count):
        value = k.load(src, count - 1 - i) >> 1
        if access == "read_write":
            value = value + (k.load(dst, i) >> 1)
        k.store(dst, i, value)
    with k.if_(i >= count):
        k.store_lane(dst, (count + 1) * width + i - count, k.load_lane(src, 5) >> 2)
    limits = np.iinfo(scalar.numpy)
    arrays = [
        np.random.default_rng(seed).integers(limits.min, limits.max + 1, (count + 4) * width)
        for seed in (0, 1)
    ]
    given = [a.astype(scalar.numpy) for a in arrays]
    want = [a.copy() for a in given]
    interpret(k.build(), (1, 1, 1), want)
    got = runner.run(k.build(), (1, 1, 1), given)
    np.testing.assert_array_equal(got[1], want[1])


def test_f16_without_the_feature_is_refused() -> None:
    k = Builder("halves", (4, 1, 1))
    src, dst = (k.buffer(n, Scalar.F16, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    with pytest.raises(KernelError, match=r"kernel halves: f16.*use precision F32"):
        WgslDialect(f16_arithmetic=False).source(k.build())
    assert WgslDialect(f16_arithmetic=True).source(k.build()).startswith("enable f16;")


# Constants and precedence


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


def test_remainders_of_negative_numbers_avoid_the_operator() -> None:
    """Vulkan leaves what `%` becomes undefined for them; ids and sizes keep the operator."""
    k = Builder("remainders", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0), "i")
    with k.loop(0, 3, name="turn") as turn:
        at = k.let((i * 3 + turn) % 8, "at")
        k.store(dst, i * 3 + turn, k.load(src, at) % 5 + (at - 7) % 2)
    text = WgslDialect().source(k.build())
    assert "let at: i32 = (i * 3 + turn) % 8;" in text
    assert "rem_i32_1(src[at], 5) + rem_i32_1(at - 7, 2)" in text


def test_comparisons_among_arguments_are_no_template_list() -> None:
    """``select(a, b < c, d > e)`` would read as ``b<c, d>(e)``."""
    k = Builder("chosen", (1, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    x, y = k.let(k.load(src, 0), "x"), k.let(k.load(src, 1), "y")
    k.store(dst, 0, k.cast(k.select(x.eq(3), x < y, y > x), Scalar.I32))
    assert "select((y > x), (x < y), (x == 3))" in WgslDialect().source(k.build())


@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_rounding_that_stands_in_for_conversions(
    runner: Any, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: behind conversions that a driver did not leave out it has nothing to do."""
    k = Builder("rounding", (64, 1, 1))
    src = k.buffer("src", Scalar.F32, width, "read")
    dst = k.buffer("dst", Scalar.F32, width, "write")
    k.store(dst, k.global_id(0), k.call("abs", k.load(src, k.global_id(0))))
    function, printed = f"to_f16_and_back_f32_{width}", WgslDialect.source

    def source(self: WgslDialect, *arguments: Any, **options: Any) -> str:
        text = printed(self, *arguments, **options)
        assert text.count("abs(") == 1
        return "\n".join(
            [
                *lines_of_function(_WgslPrinter, function, self)[0],
                text.replace("abs(", f"{function}("),
            ]
        )

    monkeypatch.setattr(WgslDialect, "source", source)
    rng = np.random.default_rng(0)
    data = np.concatenate([
        rng.integers(0, 0x7F800000, 2048, dtype=np.uint32).view(np.float32),
        np.ldexp(rng.uniform(-2, 2, 2048), rng.integers(-28, 17, 2048)).astype(np.float32),
        rng.integers(-4096, 4096, 2048).astype(np.float32) * np.float32(2.0**-25),
    ])  # fmt: skip
    with np.errstate(over="ignore"):
        want = data.astype(np.float16).astype(np.float32)
    got = runner.run(k.build(), (data.size // 64 // width, 1, 1), [data, np.zeros_like(data)])[1]
    assert got.tobytes() == want.tobytes()
