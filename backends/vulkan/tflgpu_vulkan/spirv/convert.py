"""Value conversions, with the results that the language defines where SPIR-V leaves them open."""

from __future__ import annotations

from tflgpu.language.exact import exact
from tflgpu.language.types import Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Op


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
            # NVIDIA's compiler leaves two conversions out.
            return body.written(exact("to_f16_and_back", target), body.narrowed[x])
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
        if not body.defines:  # SPIR-V: undefined beyond the range, and of a NaN
            return body.written(exact(f"to_{b.value}", source), x)
        return body.emit(Op.ConvertFToS if b is Scalar.I32 else Op.ConvertFToU, target, x)
    if b is Scalar.F32:
        op = Op.ConvertSToF if a is Scalar.I32 else Op.ConvertUToF
        return body.emit(op, target, x)
    return body.emit(Op.Bitcast, target, x)


def _convert_moved(body: Body, source: Type, target: Type, x: Id) -> Id:
    """To or from an f16 that is held as an f32."""
    if target.scalar is Scalar.F16:
        body.declarations.need_f16(f"a cast from {source}")
    return convert(body, source.with_scalar(Scalar.F32), target, x)
