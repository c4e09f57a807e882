"""What may be combined with what, and what an author is told where it may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.make import binary, call, cast, select, splat, wrap
from tflgpu.language.tree import Binary, Cast, Const, Expr, Lane, Name, Splat
from tflgpu.language.types import BOOL, F16, F32, I32, U32, F32x4, I32x4, Scalar, Type

F, V, H = Name(F32, "f"), Name(F32x4, "v"), Name(F16, "h")
N, U, B = Name(I32, "n"), Name(U32, "u"), Name(BOOL, "b")


def test_a_scalar_operand_is_spread_over_a_vectors_lanes() -> None:
    total = V + F
    assert isinstance(total, Binary)
    assert total.type == F32x4
    assert isinstance(total.right, Splat)
    doubled = 2.0 * V
    assert isinstance(doubled, Binary)
    assert isinstance(doubled.left, Const)
    assert doubled.left.type == F32x4


def test_types_of_results() -> None:
    assert (V < 1.0).type == Type(Scalar.BOOL, 4)
    assert call("dot", V, V).type == F32
    assert cast(V, Scalar.I32).type == I32x4
    assert select(V > 0, V, 0.0).type == F32x4
    assert select(B, V, F).type == F32x4
    assert V.lane(2).type == F32
    assert (B & ~B).type == BOOL


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: F + N, "add of f32 and i32: cast one of them"),
        (lambda: F + H, "add of f32 and f16"),
        (lambda: V + Name(Type(Scalar.F32, 2), "w"), "a f32x2 where 4 lanes are needed"),
        (lambda: F % 2.0, "rem of f32"),
        (lambda: F << 1.0, "shl of f32"),
        (lambda: B + True, "add of bool"),
        (lambda: B < True, "lt does not order booleans"),
        (lambda: N / 2, "use // for whole numbers"),
        (lambda: F // 2.0, "use / for floats"),
        (lambda: ~F, "~ of a float: use - to negate a number"),
        (lambda: -B, "use ~ to negate a boolean"),
        (lambda: N + 1.5, "1.5 is not a whole number"),
        (lambda: N + 2**31, "2147483648 does not fit i32"),
        (lambda: U + -1, "-1 does not fit u32"),
        (lambda: B & 1, "1 is not a boolean"),
        (lambda: bool(N < 2), "an expression has no value while the kernel is built"),
        (lambda: F.lane(1), "lane 1 of a f32"),
        (lambda: V.lane(4), "lane 4 of a f32x4"),
        (lambda: binary("hypot", F, F), "unknown operation hypot"),
        (lambda: binary("add", 1, 2), "no operand is an expression"),
        (lambda: call("gamma", F), "unknown function gamma"),
        (lambda: call("exp", F, F), "exp takes 1 arguments, not 2"),
        (lambda: call("exp", N), "exp of i32; it takes f16 or f32"),
        (lambda: call("abs", U), "abs of u32"),
        (lambda: call("pow", F, H), "pow of f32, f16"),
        (lambda: call("dot", F, F), "dot of f32; it takes vectors of f16 or f32"),
        (lambda: call("exp", 1.0), "no argument is an expression"),
        (lambda: select(N, F, F), "a condition is boolean, not i32"),
        (lambda: select(B, F, N), "select of f32 and i32"),
        (lambda: select(B, 1.0, 2.0), "give at least one value as an expression"),
        (lambda: select(Name(Type(Scalar.BOOL, 2), "c"), V, V), "a f32x4 where|condition boolx2"),
        (lambda: cast(N, Scalar.I8), "i8 is a storage type"),
        (lambda: splat(V, 2), "a f32x4 where 2 lanes are needed"),
    ],
)
def test_mistakes_are_reported_where_they_are_made(
    mistake: Callable[[], object], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        mistake()


def value(expr: Expr) -> object:
    assert isinstance(expr, Const)
    return expr.value


def test_index_arithmetic_folds() -> None:
    zero, one = Const(I32, 0), Const(I32, 1)
    assert N + 0 is N
    assert 0 + N is N
    assert N - 0 is N
    assert N * 1 is N
    assert 1 * N is N
    assert N // 1 is N
    assert value(N * 0) == 0
    assert value(N % 1) == 0
    assert value((zero + 7) // 2) == 3
    assert value((zero + 7) % 4) == 3
    assert value(binary("max", one, 5)) == 5
    assert isinstance(Const(I32, 2**31 - 1) + 1, Binary)  # would wrap: left to the device
    assert isinstance(Const(I32, -7) // 2, Binary)


def test_conditions_fold() -> None:
    # A compiler warns of a constant in a condition, and PoCL prints that it did.
    true, false = Const(I32, 2) < 3, Const(I32, 3).eq(2)
    assert (value(true), value(false)) == (True, False)
    assert true.type is BOOL
    assert (value(~true), value(~false)) == (False, True)
    for x in (B, N < 3):
        assert (true & x) is x
        assert (x & true) is x
        assert (false | x) is x
        assert value(false & x) is False
        assert value(x | true) is True
    assert isinstance(Const(F32, 1.0) < 2.0, Binary)  # left to the device, as all of floats is
    assert isinstance(Const(U32, 1) < 2, Binary)


def test_float_arithmetic_is_left_alone() -> None:
    assert isinstance(F + 0.0, Binary)  # -0.0 + 0.0 is 0.0
    assert isinstance(F * 0.0, Binary)  # and a NaN stays one


@pytest.mark.parametrize(
    ("constant", "scalar", "want"),
    [
        (Const(F32, 2.7), Scalar.I32, 2),
        (Const(F32, -2.7), Scalar.I32, -2),
        (Const(F32, 1e20), Scalar.I32, 2**31 - 1),
        (Const(F32, float("nan")), Scalar.I32, 0),
        (Const(F32, -1.0), Scalar.U32, 0),
        (Const(I32, -1), Scalar.U32, 2**32 - 1),
        (Const(I32, 3), Scalar.BOOL, True),
        (Const(BOOL, True), Scalar.F32, 1.0),
        (Const(F32, 0.1), Scalar.F16, 0.0999755859375),
        (Const(F16, 0.1), Scalar.F32, 0.0999755859375),
    ],
)
def test_constants_are_cast_as_values_are(constant: Const, scalar: Scalar, want: object) -> None:
    found = cast(constant, scalar)
    assert found.type.scalar is scalar
    assert value(found) == want


def test_a_cast_to_the_same_type_is_nothing() -> None:
    assert cast(V, Scalar.F32) is V
    assert isinstance(cast(V, Scalar.F16), Cast)


def test_lanes_of_a_new_vector_are_its_parts() -> None:
    k = Builder("k", (1, 1, 1))
    vector = k.vec([F, 1.0])
    assert vector.lane(0) is F
    assert isinstance(V.lane(0), Lane)
    assert F.lane(0) is F
    with pytest.raises(KernelError, match="vec of f32, i32"):
        k.vec([F, N])
    with pytest.raises(KernelError, match="give at least one part as an expression"):
        k.vec([1.0, 2.0])


def test_wrap_takes_numpy_numbers_and_booleans() -> None:
    import numpy as np

    assert value(wrap(np.int64(3), I32)) == 3
    assert value(wrap(np.float32(0.5), F32)) == 0.5
    assert value(wrap(True, BOOL)) is True
