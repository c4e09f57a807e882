"""Identifiers that some shading language has for itself: a kernel's own names are printed as
others.

One list for all languages, so that a name is written alike in each of them, and a printer of
another language has most of its own here already.

Sources: the OpenCL C Specification 3.0; WebGPU Shading Language, "Keyword Summary", "Reserved
Words" (which has those of C++, GLSL, HLSL and Metal), "Predeclared Types" and "Built-in Functions".
"""

from __future__ import annotations

import re

# Keywords, types and reserved words; then built-in functions, and macros that compilers define.
_TEXT = """
    abstract active alias alignas alignof array as asm asm_fragment async atomic attribute auto
    await become bool break case cast catch center centroid char class clk_event_t co_await
    co_return co_yield coherent column_major common compile compile_fragment complex concept const
    const_assert const_cast constant consteval constexpr constinit continue continuing crate
    debugger decltype default delete demote demote_to_helper diagnostic discard do double
    dynamic_cast else enable enum event_t explicit export extends extern external f16 f32 f64
    fallthrough false filter final finally flat float fn for friend from function fxgroup generic
    get global goto groupshared half handle highp i16 i32 i64 i8 if image1d_t image2d_t image3d_t
    imaginary impl implements import inline instanceof int interface intptr_t kernel layout let
    linear local long loop lowp macro macro_rules main match mediump meta mod module move mut
    mutable namespace ndrange_t new nil noexcept noinline nointerpolation non_coherent noncoherent
    noperspective NULL null nullptr of operator override package packoffset partial pass patch
    perspective pipe pixelfragment pragma precise precision premerge priv private protected ptr
    ptrdiff_t pub public quad queue_t read read_only read_write readonly ref regardless register
    reinterpret_cast require requires reserve_id_t resource restrict return sample sampler
    sampler_comparison sampler_t Self self set shared short signed size_t sizeof smooth snorm static
    static_assert static_cast std storage struct subroutine super switch target template this
    thread_local throw trait true try type typedef typeid typename typeof u16 u32 u64 u8 uchar uint
    uintptr_t ulong uniform union unless unorm unsafe unsigned unsized use ushort using var varying
    virtual void volatile wgsl where while with workgroup write write_only writeonly yield

    abs abs_diff acos acosh acospi add_sat all any arrayLength asin asinh asinpi atan atan2 atan2pi
    atanh atanpi barrier bitcast bitselect cbrt ceil clamp clz copysign cos cosh cospi
    countLeadingZeros countOneBits countTrailingZeros cross ctz degrees determinant distance dot
    dot4I8Packed dot4U8Packed erf erfc exp exp10 exp2 expm1 extractBits fabs faceForward
    fast_distance fast_length fast_normalize fdim firstLeadingBit firstTrailingBit floor fma fmax
    fmin fmod fract frexp fwidth hadd HUGE_VAL HUGE_VALF hypot i386 ilogb INFINITY insertBits
    inverse inverseSqrt isequal isfinite isgreater isgreaterequal isinf isless islessequal
    islessgreater isnan isnormal isnotequal isordered isunordered ldexp length lgamma lgamma_r linux
    log log10 log1p log2 logb mad mad24 mad_hi mad_sat max MAXFLOAT maxmag mem_fence min minmag mix
    modf mul24 mul_hi NAN nan nextafter normalize outerProduct popcount pow pown powr prefetch
    printf quantizeToF16 radians read_mem_fence reflect refract remainder remquo reverseBits rhadd
    rint rootn rotate round rsqrt saturate select shuffle shuffle2 sign signbit sin sincos sinh
    sinpi smoothstep sqrt step storageBarrier sub_sat tan tanh tanpi textureBarrier tgamma transpose
    trunc unix upsample wait_group_events workgroupBarrier workgroupUniformLoad write_mem_fence
"""
_WORDS = frozenset(_TEXT.split())
_PATTERN = re.compile(
    r"_|__.*|.*__|(u?char|u?short|u?int|u?long|float|double|half|bool|quad)\d+(x\d+)?"
    r"|vec[234][a-z]?|mat[234]x[234][fh]?|(pack|unpack)[24]x\w+|v(load|store)\w*"
    r"|(convert|as|native|half|float|get|atom|atomic|async|work_group|sub_group|cl|CL|CLK|FLT|HALF"
    r"|DBL|INT|UINT|CHAR|SCHAR|UCHAR|SHRT|USHRT|LONG|ULONG|M|FP|read_image|write_image|intel|memory"
    r"|enqueue|ndrange|create|to|matrix|subgroup)_\w+"
    r"|atomic[A-Z]\w*|texture\w*|dpd[xy]\w*|fwidth\w*|(subgroup|quad)\w*"
)


def is_reserved(ident: str) -> bool:
    """Whether a kernel's own name must not be this."""
    return ident in _WORDS or _PATTERN.fullmatch(ident) is not None
