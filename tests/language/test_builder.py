"""What may be combined with what, and what an author is told where it may not."""

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
from tflgpu.language.caps import DeviceCaps, Features
from tflgpu.language.interpreter import interpret
from tflgpu.language.kernel import Kernel
from tflgpu.language.make import binary, call, cast, select, splat, wrap
from tflgpu.language.needs import check_needs, needs_of
from tflgpu.language.tree import Binary, Cast, Const, Expr, Lane, Name, Splat
from tflgpu.language.types import BOOL, F16, F32, I32, U32, F32x4, I32x4, Scalar, Type
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_vulkan.spirv.target import Target
from tflgpu_wgpu.dialect import WgslDialect

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


# What authors write first: it works, or the message says what to write, and where it was written.


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


HINTS_N, HINTS_F, HINTS_V, HINTS_B = (
    Name(I32, "i"),
    Name(F32, "f"),
    Name(F32x4, "v"),
    Name(BOOL, "b"),
)


def _builder() -> Builder:
    return Builder("k", (4, 1, 1))


@pytest.mark.parametrize(
    ("write", "hint"),
    [
        (lambda k: 0 <= HINTS_N < 4, "is (0 <= i) & (i < n)"),
        (lambda k: HINTS_B and HINTS_B, "&, | and ~ instead of and, or and not"),
        (lambda k: not HINTS_B, "&, | and ~ instead of and, or and not"),
        (lambda k: HINTS_N in (HINTS_N + 1, 3), "no value while the kernel is built"),
        (lambda k: (HINTS_N, 1) == (HINTS_N + 1, 1), "no value while the kernel is built"),
        (lambda k: int(HINTS_N), "k.cast(x, Scalar.I32)"),
        (lambda k: range(HINTS_N), "k.loop(0, x) instead of range(x)"),
        (lambda k: [1, 2][HINTS_N], "no value while the kernel is built"),
        (lambda k: float(HINTS_F), "k.cast(x, Scalar.F32)"),
        (lambda k: math.sqrt(HINTS_F), "k.call('sqrt', x)"),
        (lambda k: math.floor(HINTS_F), "k.call('round', x), and likewise 'floor'"),
        (lambda k: round(HINTS_F), "k.call('round', x)"),
        (lambda k: [*HINTS_V], "x.lanes for all"),
        (lambda k: HINTS_V[0], "x.lane(0) for one"),
        (lambda k: len(HINTS_V), "x.lanes for all"),
        (lambda k: 1.0 in HINTS_V, "x.lanes for all"),
        (lambda k: HINTS_F**2, "k.call('pow', x, y)"),
        (lambda k: 2**HINTS_N, "k.call('pow', x, y)"),
        (lambda k: divmod(HINTS_N, 2), "x // y and x % y"),
        (lambda k: HINTS_V @ HINTS_V, "k.dot(a, b)"),
        (lambda k: HINTS_V.x, "an expression has no .x: write x.lane(0)"),
        (lambda k: Cast(F32x4, HINTS_V).x, "an expression has no .x"),
        (lambda k: (HINTS_V + HINTS_V).a, "an expression has no .a"),
        (lambda k: HINTS_V.xyz, "an expression has no .xyz: write x.lane(0)"),
        (lambda k: HINTS_V.s0, "an expression has no .s0"),
        (lambda k: 2 / HINTS_N, "use // for whole numbers"),
        (lambda k: 2 // HINTS_F, "use / for floats"),
        (lambda k: ~HINTS_F, "use - to negate a number"),
        (lambda k: abs(HINTS_B), "abs of a boolean: k.cast it"),
        (lambda k: HINTS_N == "no", "'no' is neither a number nor an expression"),
        (lambda k: HINTS_N is not None and HINTS_N != None, "None is neither"),  # noqa: E711
        (lambda k: k.if_(k.name == "k").__enter__(), "use Python's own if"),
        (lambda k: k.select(True, HINTS_N, 1), "the condition is True"),
        (lambda k: k.if_(1).__enter__(), "1 is no expression: k.const"),
        (lambda k: k.let(1.0), "1.0 is no expression: k.const"),
        (lambda k: k.var(0), "0 is no expression: k.const"),
        (lambda k: k.store(k.buffer("b", Scalar.F32, 1, "write"), 0, 1.0), "1.0 is no expression"),
        (lambda k: k.cast(HINTS_N, "f32"), "cast to 'f32', which is no Scalar"),
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
        (lambda k: k.vec([HINTS_F] * 6), "a vector of 6 lanes"),
        (lambda k: HINTS_V.lane(4), "lane 4 of a f32x4"),
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
    assert not hasattr(HINTS_V, "__array__")
    assert not hasattr(HINTS_V, "nothing")


def test_the_place_is_that_of_the_statement() -> None:
    k = _builder()
    line = sys._getframe().f_lineno
    with pytest.raises(KernelError, match=rf"{re.escape(__file__)}:{line + 3}\)$"):
        k.if_(
            k.global_id(0) < 1.5,
        )


# What kernels need of a device, and what they are told where it is lacking.


EVERYTHING = Features(f16_arithmetic=True, matrix_tiles=True, subgroup_shuffle=32)


def moved(scalar: Scalar, change: Callable[[Builder], None] | None = None) -> Kernel:
    """A copy of one element."""
    k = Builder("moved", (64, 1, 1))
    src, dst = (k.buffer(name, scalar, 1, way) for name, way in (("src", "read"), ("dst", "write")))
    if change is not None:
        change(k)
    k.store(dst, 0, k.load(src, 0))
    return k.build()


def test_f32_needs_nothing() -> None:
    needs = needs_of(moved(Scalar.F32))
    assert (needs.f16, needs.f16_arithmetic, needs.narrow) == (False, "", ())
    assert (needs.matrices, needs.shuffle) == (False, 0)
    bare = Features(f16_storage=False, int8_storage=False)
    assert check_needs(moved(Scalar.F32), bare) == needs


@pytest.mark.parametrize("scalar", [Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16])
def test_narrow_buffers(scalar: Scalar) -> None:
    kernel = moved(scalar)
    assert [buffer.name for buffer in needs_of(kernel).narrow] == ["src", "dst"]
    assert needs_of(kernel).f16 == (scalar is Scalar.F16)
    assert needs_of(kernel).problem(Features()) is None
    lacking = [Features(f16_storage=False)] if scalar in (Scalar.F16, Scalar.I16) else []
    lacking += [Features(int8_storage=False)] if scalar is not Scalar.F16 else []
    for features in lacking:
        with pytest.raises(KernelError, match=f"kernel moved: buffer src of {scalar.value}.*caps"):
            check_needs(kernel, features)


def test_f16_is_computed_with_or_only_moved() -> None:
    def half(k: Builder, value: float = 2.0) -> None:
        k.let(k.const(value, F16) * 3.0)

    def shared(k: Builder) -> None:
        k.shared("tile", F16, 4)

    def only_moved(k: Builder) -> None:
        x = k.let(k.select(k.global_id(0) > 1, k.const(1.0, F16), 0.0))
        k.let(k.max(-x, k.cast(x > 0.5, Scalar.F16)))
        k.let(k.is_nan(x))
        k.let(k.call("sign", x))

    def rounded(k: Builder) -> None:
        k.let(k.cast(k.cast(k.global_id(0), Scalar.F32), Scalar.F16))

    for change, what in (
        (half, "mul"),
        (shared, "shared array tile"),
        (rounded, "a cast from f32"),
    ):
        kernel = moved(Scalar.F32, change)
        assert needs_of(kernel).f16
        assert needs_of(kernel).f16_arithmetic == what
        with pytest.raises(KernelError, match=rf"kernel moved: {what} in f16.*precision F32"):
            check_needs(kernel, Features())
        assert needs_of(kernel).problem(EVERYTHING) is None
    assert needs_of(moved(Scalar.F32, only_moved)).f16
    assert needs_of(moved(Scalar.F32, only_moved)).f16_arithmetic == ""


def test_features_follow_from_capabilities() -> None:
    caps = DeviceCaps(
        f16_arithmetic=True,
        matrix_tiles=True,
        subgroup_shuffle=8,
        f16_storage=False,
        vendor="nvidia",
    )
    assert Target.of(caps) == Target(
        f16_storage=False, f16_arithmetic=True, int8_storage=False, matrix_tiles=True,
        subgroup_shuffle=8,
    )  # fmt: skip
    # Whatever a device of another API says: these are the language's.
    wgsl, opencl = WgslDialect.of(caps), OpenCLDialect.of(caps)
    assert (wgsl.matrix_tiles, wgsl.int8_storage) == (False, False)
    assert (opencl.f16_storage, opencl.int8_storage, opencl.shuffle_ptx) == (True, True, True)
