"""What the language makes of NaN and infinities, by the interpreter that defines it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.make import binary, call, cast
from tflgpu.language.tree import Call, Const, Expr, Name, Unary
from tflgpu.language.types import BOOL, F16, F32, I32, F32x4, Scalar, Type

NAN, INF = math.nan, math.inf


def evaluate(expr: Expr) -> list[float | bool]:
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
    found = evaluate(binary(op, Const(kind, a), Const(kind, b)))
    assert len(found) == kind.width
    assert all(math.isnan(lane) for lane in found)


@pytest.mark.parametrize(
    ("op", "want"),
    [("lt", 0), ("le", 0), ("gt", 0), ("ge", 0), ("eq", 0), ("ne", 1)],
)
def test_only_ne_holds_for_a_nan(op: str, want: int) -> None:
    for a, b in ((NAN, 1.0), (1.0, NAN), (NAN, NAN)):
        assert evaluate(binary(op, Const(F32, a), Const(F32, b))) == [want]


def test_whether_a_value_differs_from_itself_asks_for_a_nan() -> None:
    """A compiler that takes it that there are no NaNs would say that it never does."""
    for x in (Name(F32, "x"), Name(F32x4, "x"), call("exp", Name(F16, "x"))):
        differs, equals = x.ne(x), x.eq(x)
        assert isinstance(differs, Call)
        assert differs.fn == "isnan"
        assert differs.type == BOOL.with_width(x.type.width)
        assert isinstance(equals, Unary)
        assert equals.op == "not"
    assert evaluate(call("isnan", Const(F32, NAN))) == [1]
    assert evaluate(call("isnan", Const(F16, INF))) == [0]


def test_isnan_is_of_floats() -> None:
    with pytest.raises(KernelError, match="isnan of i32"):
        call("isnan", Name(I32, "n"))


def test_a_clamp_keeps_a_nan() -> None:
    k = Builder("clamp", (1, 1, 1))
    assert math.isnan(evaluate(k.clamp(Const(F32, NAN), -1.0, 1.0))[0])
    assert evaluate(k.clamp(Const(F32, -INF), -1.0, 1.0)) == [-1]


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
