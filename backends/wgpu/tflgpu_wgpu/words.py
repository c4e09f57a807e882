"""Identifiers that WGSL has for itself: keywords, reserved words, types and built-in functions."""

from __future__ import annotations

import re

from tflgpu.language.defining import STEMS

# WebGPU Shading Language, sections "Keyword Summary", "Reserved Words", "Predeclared Types" and
# "Built-in Functions"; a module may shadow the predeclared ones, and then cannot use them.
_TEXT = """
    alias break case const const_assert continue continuing default diagnostic discard else enable
    false fn for if let loop override requires return struct switch true var while

    NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become
    cast catch class co_await co_return co_yield coherent column_major common compile
    compile_fragment concept const_cast consteval constexpr constinit crate debugger decltype
    delete demote demote_to_helper do dynamic_cast enum explicit export extends extern external
    fallthrough filter final finally friend from fxgroup get goto groupshared highp impl implements
    import inline instanceof interface layout lowp macro macro_rules match mediump meta mod module
    move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent
    noncoherent noperspective null nullptr of operator package packoffset partial pass patch
    pixelfragment precise precision premerge priv protected pub public readonly ref regardless
    register reinterpret_cast require resource restrict self set shared sizeof smooth snorm static
    static_assert static_cast std subroutine super target template this thread_local throw trait
    try type typedef typeid typename typeof union unless unorm unsafe unsized use using varying
    virtual volatile wgsl where with writeonly yield

    bool f16 f32 f64 i32 u32 i64 u64 i8 u8 i16 u16 array atomic ptr sampler sampler_comparison
    function private workgroup uniform storage read write read_write handle flat linear
    perspective center centroid sample main

    abs acos acosh all any arrayLength asin asinh atan atan2 atanh bitcast ceil clamp cos cosh
    countLeadingZeros countOneBits countTrailingZeros cross degrees determinant distance dot
    dot4I8Packed dot4U8Packed exp exp2 extractBits faceForward firstLeadingBit firstTrailingBit
    floor fma fract frexp fwidth insertBits inverse inverseSqrt ldexp length log log2 max min mix
    modf normalize outerProduct pow quantizeToF16 radians reflect refract reverseBits round
    saturate select sign sin sinh smoothstep sqrt step storageBarrier tan tanh textureBarrier
    transpose trunc workgroupBarrier workgroupUniformLoad
"""
_WORDS = frozenset(_TEXT.split())
_PATTERN = re.compile(
    r"_|__.*|vec[234][a-z]?|mat[234]x[234][fh]?|(pack|unpack)[24]x\w+|atomic[A-Z]\w*"
    r"|texture\w*|dpd[xy]\w*|fwidth\w*|(subgroup|quad)\w*"
    # Names of this dialect's own.
    rf"|({'|'.join(sorted(STEMS))})_\d|nan_bits|inf_bits"
)


def is_reserved(ident: str) -> bool:
    """Whether a kernel's own name must not be this."""
    return ident in _WORDS or _PATTERN.fullmatch(ident) is not None
