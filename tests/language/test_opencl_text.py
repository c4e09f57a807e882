"""What OpenCL C looks like: people read it, and its text keys caches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tflgpu.conformance.memory_nodes import half_bits, halves_of_bits
from tflgpu.errors import KernelError
from tflgpu.language.buffers import KernelBuffer
from tflgpu.language.builder import Builder
from tflgpu.language.expressions import Expr
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import F16, F32, Scalar, Type
from tflgpu.language.words import is_reserved
from tflgpu_opencl.dialect import OpenCLDialect

from tests.language.kernel_programs import (
    PROGRAMS,
    ProgramCase,
    reserved_names,
    shared_subexpressions,
)

FULL = OpenCLDialect(f16_arithmetic=True)
NO_F16 = OpenCLDialect(f16_arithmetic=False)


def scale() -> Kernel:
    k = Builder("scale", (8, 4, 1))
    src = k.buffer("src", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    i = k.let(k.global_id(0), "i")
    with k.if_(~(i < 100)):
        k.return_()
    total = k.var(k.f32(0, 4), "total")
    with k.loop(0, 7, 2, name="j", unroll=True) as j:
        k.fma_to(total, k.load(src, i * 7 + j), 0.5)
    with k.if_(i > 3):
        k.store(dst, i, total)
    with k.else_():
        k.store_lane(dst, i * 4 + 1, total.lane(2))
    return k.build()


def test_loops_are_unrolled_as_they_say() -> None:
    k = Builder("rounds", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    for unroll in (None, True, False):
        with k.loop(0, 3, name="j", unroll=unroll) as j:
            k.store(dst, j, k.f32(1.0))
    lines = [line.strip() for line in FULL.source(k.build()).splitlines()]
    before = [lines[i - 1] for i, line in enumerate(lines) if line.startswith("for")]
    assert before[1:] == ["#pragma unroll", "#pragma unroll 1"]
    assert "#" not in before[0]


SCALE = """\
__kernel __attribute__((reqd_work_group_size(8, 4, 1)))
void scale(
    __global const float4* restrict src,
    __global float4* restrict dst) {
    const int i = (int)get_global_id(0);
    if (!(i < 100)) {
        return;
    }
    float4 total = (float4)(0.0f);
    #pragma unroll
    for (int j = 0; j < 7; j += 2) {
        total = fma(src[i * 7 + j], (float4)(0.5f), total);
    }
    if (i > 3) {
        dst[i] = total;
    } else {
        ((__global float*)dst)[i * 4 + 1] = total.z;
    }
}
"""


def test_a_whole_kernel() -> None:
    assert FULL.source(scale()) == SCALE


def printed(
    write: Callable[[Builder, Expr], Expr],
    scalar: Scalar = Scalar.F32,
    width: int = 4,
    dialect: OpenCLDialect = FULL,
    *,
    is_index: bool = False,
) -> str:
    """The right side of the statement that computes an expression of x, a let: data or an index."""
    k = Builder("k", (1, 1, 1))
    src = k.buffer("src", scalar, width, "read")
    k.buffer("dst", Scalar.F32, 1, "write")
    x = k.let(k.global_id(0) if is_index else k.load(src, 0), "x")
    k.let(write(k, x), "result")
    (line,) = (s for s in dialect.source(k.build()).splitlines() if " result = " in s)
    return line.split(" = ")[1].rstrip(";")


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (lambda k, x: x * 2.0 + 1.0, "x * 2.0f + 1.0f"),
        (lambda k, x: (x + 1.0) * 2.0, "(x + 1.0f) * 2.0f"),
        (lambda k, x: x - (x - 1.0), "x - (x - 1.0f)"),
        (lambda k, x: -x / (x * 3.0), "-x / (x * 3.0f)"),
        (
            lambda k, x: k.clamp(x, 0, 6),
            "float_at_most4(float_at_least4(x, (float4)(0.0f)), (float4)(6.0f))",
        ),
        (lambda k, x: k.max(0, x), "float_at_least4(x, (float4)(0.0f))"),
        (lambda k, x: k.max(x, x + 1), "float_max4(x, x + 1.0f)"),
        (lambda k, x: k.min(x, float("nan")), "float_min4(x, (float4)(NAN))"),
        (lambda k, x: k.cast(k.is_nan(x), Scalar.F32), "convert_float4(isnan(x) & 1)"),
        (lambda k, x: k.cast(x.ne(x), Scalar.F32), "convert_float4(isnan(x) & 1)"),
        (lambda k, x: k.select(x > 0, x, 0), "select((float4)(0.0f), x, x > 0.0f)"),
        (lambda k, x: k.select(x.lane(0) > 0, x, -x), "x.x > 0.0f ? x : -x"),
        (lambda k, x: k.call("round", x), "rint(x)"),
        (lambda k, x: k.call("abs", x), "fabs(x)"),
        (lambda k, x: k.cast(x, Scalar.I32), "convert_int4_sat(x)"),
        (lambda k, x: k.cast(x.lane(1), Scalar.U32), "convert_uint_sat(x.y)"),
        (lambda k, x: k.cast(x > 1, Scalar.F32), "convert_float4((x > 1.0f) & 1)"),
        (lambda k, x: k.vec([x.lane(3), 0.25]), "(float2)(x.w, 0.25f)"),
        (lambda k, x: k.splat(x.lane(3), 2), "(float2)(x.w)"),
        (lambda k, x: (x > 0) & ~(x < 1), "(x > 0.0f) & ~(x < 1.0f)"),
        (lambda k, x: k.f32(float("inf")), "INFINITY"),
        (lambda k, x: k.f32(float("-inf")), "-INFINITY"),
        (lambda k, x: k.f32(float("nan")), "NAN"),
        (lambda k, x: k.f32(0.1) + x.lane(0), "0.1f + x.x"),
        (lambda k, x: k.f32(1e-7), "1e-07f"),
    ],
)
def test_expressions(write: Callable[[Builder, Expr], Expr], want: str) -> None:
    if want in ("INFINITY", "-INFINITY", "NAN", "1e-07f"):  # constants are not let-bound
        write_const = write
        assert printed(lambda k, x: k.select(x.lane(0) > 0, write_const(k, x), 0.0)) == (
            f"x.x > 0.0f ? {want} : 0.0f"
        )
    else:
        assert printed(write) == want


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (lambda k, x: x // 3 * 3 + x % 3, "x / 3 * 3 + x % 3"),
        (lambda k, x: x // (x * 3), "x / (x * 3)"),
        (lambda k, x: (x & 3) << 2, "(x & 3) << 2"),
        (lambda k, x: x & 3 | 4, "(x & 3) | 4"),
        (lambda k, x: (x + 1) >> 1, "(x + 1) >> 1"),
        (lambda k, x: (x >= 0) & (x < 5) & (x * 2 > 3), "x >= 0 && x < 5 && x * 2 > 3"),
        (lambda k, x: (x > 0) & (x < 5) | x.eq(7), "(x > 0 && x < 5) || x == 7"),
        (lambda k, x: (x > 0).eq(x < 9), "(x > 0) == (x < 9)"),
        (lambda k, x: k.min(x, -(2**31)), "min(x, -2147483647 - 1)"),
        (lambda k, x: x - k.i32(-3), "x - -3"),
        (lambda k, x: k.call("abs", x), "(int)abs(x)"),
        (lambda k, x: k.call("sign", x), "clamp(x, -1, 1)"),
        (lambda k, x: k.cast(x, Scalar.F32) * 0.5, "(float)x * 0.5f"),
        (lambda k, x: k.cast(x, Scalar.BOOL), "x != 0"),
        (lambda k, x: k.select(k.select(x > 1, x, 2) > 1, x, 3), "(x > 1 ? x : 2) > 1 ? x : 3"),
        (lambda k, x: k.const(7, Type(Scalar.U32)) + k.cast(x, Scalar.U32), "7u + (uint)x"),
    ],
)
def test_integer_expressions(write: Callable[[Builder, Expr], Expr], want: str) -> None:
    assert printed(write, Scalar.I32, 1, is_index=True) == want


@pytest.mark.parametrize(
    ("write", "width", "want"),
    [
        (lambda k, x: x + 1 > x, 1, "(int)((uint)x + 1u) > x"),
        (lambda k, x: x * 2 // 2, 1, "(int)((uint)x * 2u) / 2"),
        (lambda k, x: -(x * x - -3) << 1, 1, "(int)(-((uint)x * (uint)x - 4294967293u)) << 1"),
        (lambda k, x: k.max(x, 0) + x % 3, 1, "(int)((uint)max(x, 0) + (uint)(x % 3))"),
        (lambda k, x: k.cast(x, Scalar.F32) + 1.0, 1, "(float)x + 1.0f"),
        (
            lambda k, x: x * 2 + k.const(3, x.type),
            2,
            "as_int2(as_uint2(x) * (uint2)(2u) + (uint2)(3u))",
        ),
        (lambda k, x: k.global_id(0) * 4 + 1, 1, "(int)get_global_id(0) * 4 + 1"),
    ],
)
def test_sums_of_data_wrap_around(
    write: Callable[[Builder, Expr], Expr], width: int, want: str
) -> None:
    """Signed overflow is undefined in C, and PoCL makes use of that."""
    assert printed(write, Scalar.I32, width) == want


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (lambda k, x: x * 0.5 + x, "x * (half)0.5f + x"),
        (lambda k, x: k.max(x, 0), "half_at_least4(x, (half4)((half)0.0f))"),
        (lambda k, x: k.call("exp", x), "float_to_half4(exp(half_to_float4(x)))"),
        (lambda k, x: k.call("tanh", x.lane(1)), "(half)tanh((float)x.y)"),
        (lambda k, x: k.fma(x, x, 1.0), "x * x + (half4)((half)1.0f)"),
        (lambda k, x: k.cast(x, Scalar.F32), "half_to_float4(x)"),
        (lambda k, x: k.cast(x, Scalar.I32), "convert_int4_sat(half_to_float4(x))"),
        (lambda k, x: x > 0, "convert_int4(x > (half)0.0f)"),
    ],
)
def test_f16_uses_operators_and_goes_through_float_for_functions(
    write: Callable[[Builder, Expr], Expr], want: str
) -> None:
    assert printed(write, Scalar.F16) == want


# f16 in memory


def half_kernel(as_scalar: Scalar | None, width: int = 4, lane: bool = False) -> Kernel:
    k = Builder("half_kernel", (1, 1, 1))
    src = k.buffer("src", Scalar.F16, width, "read")
    dst = k.buffer("dst", Scalar.F16, width, "write")
    if lane:
        k.store_lane(dst, 1, k.load_lane(src, 2, as_scalar))
    else:
        k.store(dst, 0, k.load(src, 0, as_scalar))
    return k.build()


@pytest.mark.parametrize(
    ("dialect", "as_scalar", "lane", "want"),
    [
        (NO_F16, Scalar.F32, False, "vstorea_half4_rte(vloada_half4(0, src), 0, dst);"),
        (NO_F16, Scalar.F32, True, "vstore_half_rte(vload_half(2, src), 1, dst);"),
        (NO_F16, None, False, "vstorea_half4_rte(vloada_half4(0, src), 0, dst);"),
        (FULL, None, False, "dst[0] = load_half4(src, 0);"),
        (
            FULL,
            None,
            True,
            "((__global half*)dst)[1] = (half)vload_half(2, (__global const half*)src);",
        ),
        (
            FULL,
            Scalar.F32,
            False,
            (
                "vstorea_half4_rte(vloada_half4(0, (__global const half*)src), 0, (__global "
                "half*)dst);"
            ),
        ),
    ],
)
def test_f16_memory(
    dialect: OpenCLDialect, as_scalar: Scalar | None, lane: bool, want: str
) -> None:
    source = dialect.source(half_kernel(as_scalar, lane=lane))
    assert f"    {want}\n" in source
    assert ("cl_khr_fp16 : enable" in source) == (dialect is FULL)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda k, x: x + 1.0, "add"),
        (lambda k, x: k.call("exp", x), "exp"),
        (lambda k, x: k.cast(k.cast(x, Scalar.F32), Scalar.F16), "a cast from f32x4"),
    ],
)
def test_f16_arithmetic_is_refused_where_there_is_none(
    write: Callable[[Builder, Expr], Expr], what: str
) -> None:
    with pytest.raises(KernelError, match=rf"kernel k: {what} in f16, which this device only"):
        printed(write, Scalar.F16, 4, NO_F16)


def test_a_shared_array_of_f16_is_refused_where_there_is_no_f16() -> None:
    k = Builder("k", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    tile = k.shared("tile", F16, 4)
    k.store(dst, 0, k.cast(k.load_shared(tile, 0), Scalar.F32))
    with pytest.raises(KernelError, match="shared array tile in f16"):
        NO_F16.source(k.build())
    assert "__local half tile[4];" in FULL.source(k.build())


def test_small_integers() -> None:
    k = Builder("k", (1, 1, 1))
    src = k.buffer("src", Scalar.I8, 4, "read")
    dst = k.buffer("dst", Scalar.U8, 4, "write")
    k.store(dst, 0, k.load(src, 0))
    k.store_lane(dst, 4, k.load_lane(src, 1))
    source = FULL.source(k.build())
    assert "__global const char4* restrict src" in source
    assert "dst[0] = convert_uchar4(convert_int4(src[0]));" in source
    lane = "((__global uchar*)dst)[4] = (uchar)((int)((__global const char*)src)[1]);"
    assert lane in source


# Names, sharing, stability


def test_reserved_and_invalid_names_are_replaced() -> None:
    kernel = reserved_names().kernel
    source = FULL.source(kernel)
    assert "void k_min(" in source
    assert "restrict k_half" in source
    assert "__local float k_local[4];" in source
    assert "const float a_b_c = " in source


@pytest.mark.parametrize(
    "word",
    [
        "half", "kernel", "local", "min", "float4", "uint16", "convert_int4", "vload_half4",
        "get_global_id", "as_float", "native_exp", "fma", "__x", "CLK_LOCAL_MEM_FENCE", "half_exp",
        "NAN", "double3", "atomic_add", "sub_group_reduce_add", "M_PI_F",
    ],
)  # fmt: skip
def test_reserved(word: str) -> None:
    assert is_reserved(word)


@pytest.mark.parametrize("word", ["src", "dst", "acc", "x", "slice", "outer", "asleep", "halves"])
def test_not_reserved(word: str) -> None:
    assert not is_reserved(word)


def test_a_replaced_name_does_not_hit_another() -> None:
    k = Builder("k", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    a = k.let(k.cast(k.global_id(0), Scalar.F32), "min")
    b = k.let(a + 1.0, "k_min")
    c = k.let((a + b) * (a + b), "e")
    d = (b + c) * 2.0
    k.store(dst, 0, d * d)
    source = FULL.source(k.build())
    assert "const float k_min_0 = (float)((int)get_global_id(0));" in source
    assert "const float k_min = k_min_0 + 1.0f;" in source
    assert "const float e_0 = (k_min + e) * 2.0f;\n    dst[0] = e_0 * e_0;" in source


def test_shared_expressions_are_computed_once() -> None:
    source = FULL.source(shared_subexpressions().kernel)
    assert source.count("src[") == 1
    assert len(source) < 4000


def test_a_temporary_is_of_one_statement_only() -> None:
    k = Builder("k", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    v = k.let(k.cast(k.global_id(0), Scalar.F32), "v")
    plus = v + 1.0
    k.store(dst, 0, plus * plus)
    k.store(dst, 1, plus * plus)
    source = FULL.source(k.build())
    assert source.count("= v + 1.0f;") == 2


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_text_depends_on_the_kernel_only(make: Callable[[], ProgramCase]) -> None:
    assert FULL.source(make().kernel) == FULL.source(make().kernel)


def test_text_is_the_same_in_another_process() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from kernel_programs import PROGRAMS\n"
        "from tflgpu_opencl.dialect import OpenCLDialect\n"
        "import hashlib\n"
        "text = ''.join(OpenCLDialect(f16_arithmetic=True).source(p().kernel) for p in PROGRAMS)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    folder = str(Path(__file__).parent)
    found = {
        subprocess.run(
            [sys.executable, "-c", script, folder],
            env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_access_decides_const() -> None:
    k = Builder("k", (1, 1, 1))
    k.buffer("a", Scalar.F32, 2, "read")
    k.buffer("b", Scalar.I16, 1, "write")
    k.buffer("c", Scalar.U32, 4, "read_write")
    source = FULL.source(k.build())
    assert "__global const float2* restrict a" in source
    assert "__global short* restrict b" in source
    assert "__global uint4* restrict c" in source


def test_f16_literal_is_the_number_it_rounds_to() -> None:
    k = Builder("k", (1, 1, 1))
    dst: KernelBuffer = k.buffer("dst", Scalar.F16, 1, "write")
    k.store(dst, 0, k.const(0.1, F16))
    k.store(dst, 1, k.const(1e9, F16))
    assert "vstore_half_rte(0.099975586f, 0, dst);" in NO_F16.source(k.build())
    k.store(dst, 2, k.const(65519, F16))
    source = FULL.source(k.build())
    assert "dst[1] = (half)INFINITY;" in source
    assert "dst[2] = (half)65504.0f;" in source


@pytest.mark.parametrize(
    ("value", "want"), [(3.4028235e38, "3.4028235e+38f"), (3.4028236e38, "INFINITY")]
)
def test_a_number_beyond_f32_is_infinite(value: float, want: str) -> None:
    k = Builder("k", (1, 1, 1))
    k.store(k.buffer("dst", Scalar.F32, 1, "write"), 0, k.f32(value))
    assert f"dst[0] = {want};" in FULL.source(k.build())


def test_deep_expressions_are_broken_into_lines() -> None:
    k = Builder("k", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    value: Expr = k.let(k.cast(k.global_id(0), Scalar.F32), "x")
    for n in range(100):
        value = value * k.f32(n) + value.type.width
    assert value.type == F32
    k.store(dst, 0, value)
    assert max(len(line) for line in FULL.source(k.build()).splitlines()) < 200


def test_bits_of_halves_are_taken_two_by_two() -> None:
    """NVIDIA's compiler has no ``as_uint2`` of a half4 where cl_khr_fp16 is not listed."""
    source = FULL.source(half_bits().kernel)
    assert "half4_bits(" in source and "as_uint2(" not in source
    assert source.index("HALF2_TO_BITS(x)") < source.index("uint2 half4_bits")
    source = FULL.source(halves_of_bits().kernel)
    assert "bits_half4(" in source and "as_half4(" not in source
    assert source.index("BITS_TO_HALF2(x)") < source.index("half4 bits_half4")
