"""What authors write first: it works, or the message says what to write, and where it was
written."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.expressions import Expr
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Cast, Name
from tflgpu.language.types import BOOL, F16, F32, I32, U32, F32x4, Scalar, Type

NUMBERS = np.array([-7, -2, 0, 1, 3, 30], np.int32)

WORKS: list[Callable[[Any], Any]] = [
    lambda i: 2 - i,
    lambda i: -i,
    lambda i: +i,
    lambda i: ~i,
    abs,
    lambda i: 20 // (i | 1),
    lambda i: 20 % (i | 1),
    lambda i: i % 3,
    lambda i: 1 << (i & 7),
    lambda i: 200 >> (i & 7),
    lambda i: (3 & i) + (8 | i) + (5 ^ i),
    lambda i: np.int64(4) + i,
    lambda i: np.int32(4) * i,
]


def _c_like(value: Any) -> Any:
    """Division and remainder truncate, as in C."""

    class Number(int):
        def __or__(self, other: int) -> Number:
            return Number(int(self) | other)

        def __rfloordiv__(self, other: int) -> int:
            return math.trunc(other / int(self))

        def __rmod__(self, other: int) -> int:
            return int(math.fmod(other, int(self)))

        def __mod__(self, other: int) -> int:
            return int(math.fmod(int(self), other))

    return Number(value)


@pytest.mark.parametrize("write", WORKS)
def test_pythons_operators_build(write: Callable[[Any], Any]) -> None:
    k = Builder("operators", (len(NUMBERS), 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    at = k.global_id(0)
    k.store(dst, at, write(k.load(src, at)))
    out = np.zeros_like(NUMBERS)
    interpret(k.build(), (1, 1, 1), [NUMBERS, out])
    assert out.tolist() == [int(write(_c_like(n))) for n in NUMBERS]


def test_unsigned_and_float_operators() -> None:
    u, f = Name(U32, "u"), Name(F32, "f")
    assert abs(u) is u
    assert (~u).type is U32
    assert (2.0 / f).type is abs(f).type is F32
    assert (np.float32(2) * f).type is F32


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (lambda i: i == 2, [0, 0, 1, 0]),
        (lambda i: i != 2, [1, 1, 0, 1]),
        (lambda i: 2 == i, [0, 0, 1, 0]),  # noqa: SIM300
        (lambda i: (i >= 1) & (i < 3), [0, 1, 1, 0]),
        (lambda i: (i == 0) | ~(i < 3), [1, 0, 0, 1]),
    ],
)
def test_comparisons_build_conditions(write: Callable[[Expr], Expr], want: list[int]) -> None:
    k = Builder("compare", (4, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0), "i")
    with k.if_(write(i)):
        k.store(dst, i, k.i32(1))
    out = np.zeros(4, np.int32)
    interpret(k.build(), (1, 1, 1), [out])
    assert out.tolist() == want


def test_an_expression_is_a_key_by_itself() -> None:
    i, j = Name(I32, "i"), Name(I32, "i")
    assert {i: 1, j: 2}[i] == 1
    assert (i, 1) == (i, 1)


N, F, V, B = Name(I32, "i"), Name(F32, "f"), Name(F32x4, "v"), Name(BOOL, "b")


def _builder() -> Builder:
    return Builder("k", (4, 1, 1))


@pytest.mark.parametrize(
    ("write", "hint"),
    [
        (lambda k: 0 <= N < 4, "is (0 <= i) & (i < n)"),
        (lambda k: B and B, "&, | and ~ instead of and, or and not"),
        (lambda k: not B, "&, | and ~ instead of and, or and not"),
        (lambda k: N in (N + 1, 3), "no value while the kernel is built"),
        (lambda k: (N, 1) == (N + 1, 1), "no value while the kernel is built"),
        (lambda k: int(N), "k.cast(x, Scalar.I32)"),
        (lambda k: range(N), "k.loop(0, x) instead of range(x)"),
        (lambda k: [1, 2][N], "no value while the kernel is built"),
        (lambda k: float(F), "k.cast(x, Scalar.F32)"),
        (lambda k: math.sqrt(F), "k.call('sqrt', x)"),
        (lambda k: math.floor(F), "k.call('round', x), and likewise 'floor'"),
        (lambda k: round(F), "k.call('round', x)"),
        (lambda k: [*V], "x.lanes for all"),
        (lambda k: V[0], "x.lane(0) for one"),
        (lambda k: len(V), "x.lanes for all"),
        (lambda k: 1.0 in V, "x.lanes for all"),
        (lambda k: F**2, "k.call('pow', x, y)"),
        (lambda k: 2**N, "k.call('pow', x, y)"),
        (lambda k: divmod(N, 2), "x // y and x % y"),
        (lambda k: V @ V, "k.dot(a, b)"),
        (lambda k: V.x, "an expression has no .x: write x.lane(0)"),
        (lambda k: Cast(F32x4, V).x, "an expression has no .x"),
        (lambda k: (V + V).a, "an expression has no .a"),
        (lambda k: V.xyz, "an expression has no .xyz: write x.lane(0)"),
        (lambda k: V.s0, "an expression has no .s0"),
        (lambda k: 2 / N, "use // for whole numbers"),
        (lambda k: 2 // F, "use / for floats"),
        (lambda k: ~F, "use - to negate a number"),
        (lambda k: abs(B), "abs of a boolean: k.cast it"),
        (lambda k: N == "no", "'no' is neither a number nor an expression"),
        (lambda k: N is not None and N != None, "None is neither"),  # noqa: E711
        (lambda k: k.if_(k.name == "k").__enter__(), "use Python's own if"),
        (lambda k: k.select(True, N, 1), "the condition is True"),
        (lambda k: k.if_(1).__enter__(), "1 is no expression: k.const"),
        (lambda k: k.let(1.0), "1.0 is no expression: k.const"),
        (lambda k: k.var(0), "0 is no expression: k.const"),
        (lambda k: k.store(k.buffer("b", Scalar.F32, 1, "write"), 0, 1.0), "1.0 is no expression"),
        (lambda k: k.cast(N, "f32"), "cast to 'f32', which is no Scalar"),
        (lambda k: k.buffer("b", Scalar.F32, 1, "rw"), "access 'rw'; there are 'read', 'write'"),
        (lambda k: k.buffer("b", Scalar.F32, 3, "read"), "buffer b has 3 lanes; 1, 2 or 4"),
        (lambda k: k.buffer("b", Scalar.BOOL, 1, "read"), "buffer b of booleans"),
        (lambda k: k.shared("s", F32, 0), "shared array s is empty"),
        (lambda k: k.shared("s", Type(Scalar.I8), 1), "shared array s of i8: use i32"),
        (lambda k: k.global_id(3), "global_id(3); the axes are 0, 1 and 2"),
        (lambda k: k.local_id(-1), "local_id(-1); the axes are 0, 1 and 2"),
        (lambda k: k.group_id("x"), "group_id('x'); the axes are 0, 1 and 2"),
        (lambda k: Type(Scalar.F32, 5), "a vector of 5 lanes; the language has 2, 3 and 4"),
        (lambda k: k.const(0, F16.with_width(8)), "a vector of 8 lanes"),
        (lambda k: k.vec([F] * 6), "a vector of 6 lanes"),
        (lambda k: V.lane(4), "lane 4 of a f32x4"),
        (lambda k: Builder("k", (4, 1)), "workgroup (4, 1) needs three sizes"),  # type: ignore[arg-type]
        (lambda k: Builder("k", (64, 32, 1)), "more than 1024 invocations"),
    ],
)
def test_what_is_refused_where_it_is_written(write: Callable[[Builder], object], hint: str) -> None:
    k = _builder()
    wrote = write.__code__.co_firstlineno
    with pytest.raises(KernelError, match=re.escape(hint)) as caught:
        write(k)
    assert f"{__file__}:{wrote}" in str(caught.value)


def test_what_python_asks_of_any_object_is_no_lane() -> None:
    assert not hasattr(V, "__array__")
    assert not hasattr(V, "nothing")


def test_the_place_is_that_of_the_statement() -> None:
    k = _builder()
    line = sys._getframe().f_lineno
    with pytest.raises(KernelError, match=rf"{re.escape(__file__)}:{line + 3}\)$"):
        k.if_(
            k.global_id(0) < 1.5,
        )
