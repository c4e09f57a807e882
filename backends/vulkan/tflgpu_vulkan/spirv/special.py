"""NaN: how to ask for it, and extremes that keep it.

SPIR-V's FMin and FMax may give either operand where one is NaN, NMin and NMax give the other one;
none of them gives the NaN. Where a device promises to keep NaN (SignedZeroInfNanPreserve, see
`tflgpu_vulkan.spirv.target`), comparisons do what is wanted. Elsewhere a compiler may compute as if
there were none, so the question is asked of the bits, and extremes are `tflgpu.language.guards`.
"""

from __future__ import annotations

from tflgpu.language.types import BOOL, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Op

_INFINITY_TWICE = 0xFF000000  # the bits of infinity without the sign, one place to the left
_BEYOND = {"min": Op.FOrdGreaterThan, "max": Op.FOrdLessThan}
_BEFORE = {"min": Op.FOrdLessThan, "max": Op.FOrdGreaterThan}


def keeps_nan(body: Body, type: Type) -> bool:
    """Whether comparisons of ``type`` may be relied on where an operand is NaN."""
    target = body.declarations.target
    is_half = type.scalar is Scalar.F16 and target.f16_arithmetic
    return (16 if is_half else 32) in target.keeps_special


def is_nan(body: Body, type: Type, x: Id) -> Id:
    """Which lanes of ``x`` are NaN."""
    if keeps_nan(body, type):
        return body.compare(Op.FUnordNotEqual, type, x, x)
    if type.scalar is Scalar.F16 and body.declarations.target.f16_arithmetic:
        x = body.emit(Op.FConvert, type.with_scalar(Scalar.F32), x)
    words = type.with_scalar(Scalar.U32)
    bits = body.emit(Op.Bitcast, words, x)
    twice = body.emit(Op.ShiftLeftLogical, words, bits, body.const(words, 1))
    return body.compare(Op.UGreaterThan, words, twice, body.const(words, _INFINITY_TWICE))


def extreme(body: Body, op: str, type: Type, a: Id, b: Id) -> Id:
    """``min`` or ``max`` of floats where NaN is kept: NaN where either is."""
    kept = body.compare(_BEFORE[op], type, a, b)
    kept = body.emit(Op.LogicalOr, BOOL.with_width(type.width), kept, is_nan(body, type, a))
    return body.select(type, kept, a, b)


def limited(body: Body, op: str, type: Type, x: Id, limit: Id) -> Id:
    """The same where ``limit`` is no NaN, which takes one comparison."""
    beyond = body.compare(_BEYOND[op], type, x, limit)
    return body.select(type, beyond, limit, x)
