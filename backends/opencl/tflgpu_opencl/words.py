"""Identifiers that OpenCL C has for itself: keywords, types, and built-in functions."""

from __future__ import annotations

import re

# Keywords and types, then built-in functions, and macros that compilers define.
_TEXT = """
    auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef
    union unsigned void volatile while bool half uchar ushort uint ulong size_t ptrdiff_t intptr_t
    uintptr_t true false quad complex imaginary kernel global local constant private generic
    read_only write_only read_write pipe event_t sampler_t queue_t clk_event_t ndrange_t
    reserve_id_t image1d_t image2d_t image3d_t attribute pragma asm main NULL

    acos acosh acospi asin asinh asinpi atan atan2 atanh atanpi atan2pi cbrt ceil copysign cos
    cosh cospi erf erfc exp exp2 exp10 expm1 fabs fdim floor fma fmax fmin fmod fract frexp hypot
    ilogb ldexp lgamma lgamma_r log log2 log10 log1p logb mad maxmag minmag modf nan nextafter pow
    pown powr remainder remquo rint rootn round rsqrt sin sincos sinh sinpi sqrt tan tanh tanpi
    tgamma trunc abs abs_diff add_sat hadd rhadd clamp clz ctz mad_hi mad_sat max min mul_hi
    rotate sub_sat upsample popcount mad24 mul24 degrees mix radians step smoothstep sign cross
    dot distance length normalize fast_distance fast_length fast_normalize isequal isnotequal
    isgreater isgreaterequal isless islessequal islessgreater isfinite isinf isnan isnormal
    isordered isunordered signbit any all bitselect select shuffle shuffle2 printf barrier
    mem_fence read_mem_fence write_mem_fence prefetch wait_group_events MAXFLOAT HUGE_VALF
    INFINITY NAN HUGE_VAL linux unix i386
"""
_WORDS = frozenset(_TEXT.split())
_PATTERN = re.compile(
    r"__.*|.*__|(u?char|u?short|u?int|u?long|float|double|half|bool|quad)\d+(x\d+)?"
    r"|(convert|as|native|half|float|get|atom|atomic|async|work_group|sub_group|cl|CL|CLK|FLT|HALF|DBL"
    r"|INT|UINT|CHAR|SCHAR|UCHAR|SHRT|USHRT|LONG|ULONG|M|FP|read_image|write_image|intel|memory"
    r"|enqueue|ndrange|create|to|matrix|subgroup)_\w+"
    r"|v(load|store)\w*"
)


def is_reserved(ident: str) -> bool:
    """Whether a kernel's own name must not be this."""
    return ident in _WORDS or _PATTERN.fullmatch(ident) is not None
