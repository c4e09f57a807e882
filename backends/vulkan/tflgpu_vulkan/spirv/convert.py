"""Value conversions, with the results that the language defines where SPIR-V leaves them open."""

from __future__ import annotations

from tflgpu.kernel.types import BOOL, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Glsl, Op

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
        return body.emit(Op.FConvert, target, x)
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
    number = body.emit(Op.FOrdEqual, BOOL.with_width(source.width), x, x)
    return body.select(target, number, result, body.const(target, 0))
