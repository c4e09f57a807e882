"""Value conversions, with the results that the language defines where SPIR-V leaves them open."""

from __future__ import annotations

from tflgpu.language.types import Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.declare import U32
from tflgpu_vulkan.spirv.grammar import Glsl, Op
from tflgpu_vulkan.spirv.special import is_nan, keeps_nan

#: Of each integer type: the range, and the largest f32 below its upper end.
_RANGES = {
    Scalar.I32: (-(2**31), 2**31 - 1, 2.0**31 - 2.0**7),
    Scalar.U32: (0, 2**32 - 1, 2.0**32 - 2.0**8),
}


def convert(body: Body, source: Type, target: Type, x: Id) -> Id:
    """``x`` of ``source`` as a ``target``; both have as many lanes."""
    a, b = source.scalar, target.scalar
    if a is b:
        return x
    if a is Scalar.BOOL:
        return body.select(target, x, body.const(target, 1), body.const(target, 0))
    if b is Scalar.BOOL:
        op = Op.FUnordNotEqual if a.is_float else Op.INotEqual
        return body.emit(op, target, x, body.const(source, 0))
    if Scalar.F16 in (a, b) and not body.declarations.target.f16_arithmetic:
        return _convert_moved(body, source, target, x)
    if a.is_float and b.is_float:
        if x in body.narrowed:
            return _round_to_f16(body, target, body.narrowed[x])
        found = body.emit(Op.FConvert, target, x)
        if b is Scalar.F16:
            body.narrowed[found] = x
        return found
    wide = target.with_scalar(Scalar.F32)
    if a is Scalar.F16:
        return convert(body, wide, target, body.emit(Op.FConvert, wide, x))
    if b is Scalar.F16:
        return body.emit(Op.FConvert, target, convert(body, source, wide, x))
    if a is Scalar.F32:
        return _to_whole(body, source, target, x)
    if b is Scalar.F32:
        op = Op.ConvertSToF if a is Scalar.I32 else Op.ConvertUToF
        return body.emit(op, target, x)
    return body.emit(Op.Bitcast, target, x)


def _round_to_f16(body: Body, kind: Type, x: Id) -> Id:
    """f32 to f16 and back. NVIDIA's compiler leaves two conversions out, and OpQuantizeToF16 is
    something else: it flushes subnormals and makes infinity of all above 65504."""
    words = U32.with_width(kind.width)

    def word(value: int) -> Id:
        return body.const(words, value)

    bits = body.emit(Op.Bitcast, words, x)
    sign = body.emit(Op.BitwiseAnd, words, bits, word(0x80000000))
    bits = body.emit(Op.BitwiseAnd, words, bits, word(0x7FFFFFFF))
    magnitude = body.emit(Op.Bitcast, kind, bits)
    # Normal numbers have 11 bits, 13 fewer than an f32; halves go to the even neighbour.
    odd = body.emit(Op.ShiftRightLogical, words, bits, word(13))
    odd = body.emit(Op.BitwiseAnd, words, odd, word(1))
    bits = body.emit(Op.IAdd, words, body.emit(Op.IAdd, words, bits, word(0xFFF)), odd)
    bits = body.emit(Op.BitwiseAnd, words, bits, word(0xFFFFE000))
    normal = body.emit(Op.Bitcast, kind, bits)
    # Subnormal ones are multiples of 2^-24.
    subnormal = body.f_mul(kind, magnitude, body.const(kind, 2.0**24))
    subnormal = body.glsl(Glsl.RoundEven, kind, subnormal)
    subnormal = body.f_mul(kind, subnormal, body.const(kind, 2.0**-24))
    is_normal = body.compare(Op.FOrdGreaterThanEqual, kind, magnitude, body.const(kind, 2.0**-14))
    found = body.select(kind, is_normal, normal, subnormal)
    beyond = body.compare(Op.FOrdGreaterThan, kind, found, body.const(kind, 65504.0))
    found = body.select(kind, beyond, body.const(kind, float("inf")), found)
    bits = body.emit(Op.Bitcast, words, found)
    if not keeps_nan(body, kind):  # where it does, one came through the subnormals' arithmetic
        size = body.emit(Op.Bitcast, words, magnitude)
        bits = body.select(words, is_nan(body, kind, x), size, bits)
    return body.emit(Op.Bitcast, kind, body.emit(Op.BitwiseOr, words, bits, sign))


def _convert_moved(body: Body, source: Type, target: Type, x: Id) -> Id:
    """To or from an f16 that is held as an f32."""
    if target.scalar is Scalar.F16:
        body.declarations.need_f16(f"a cast from {source}")
    return convert(body, source.with_scalar(Scalar.F32), target, x)


def _to_whole(body: Body, source: Type, target: Type, x: Id) -> Id:
    """Truncation; beyond the range its end, and 0 of a NaN (SPIR-V: undefined)."""
    low, high, below = _RANGES[target.scalar]
    inside = body.glsl(Glsl.NMax, source, x, body.const(source, float(low)))
    inside = body.glsl(Glsl.NMin, source, inside, body.const(source, below))
    op = Op.ConvertFToS if target.scalar is Scalar.I32 else Op.ConvertFToU
    result = body.emit(op, target, inside)
    beyond = body.compare(Op.FOrdGreaterThan, source, x, body.const(source, below))
    result = body.select(target, beyond, body.const(target, high), result)
    return body.select(target, is_nan(body, source, x), body.const(target, 0), result)
