"""NaN: how to ask for it, and extremes that keep it.

SPIR-V's FMin and FMax may give either operand where one is NaN, NMin and NMax give the other one;
none of them gives the NaN. Where a device promises to keep NaN (SignedZeroInfNanPreserve, see
`tflgpu_vulkan.spirv.target`), comparisons do what is wanted. Elsewhere a compiler may compute as if
there were none, so the question is asked of the bits.
"""

from __future__ import annotations

import math

from tflgpu.language.numbers import Foregone
from tflgpu.language.types import BOOL, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Glsl, Op

_INFINITY_TWICE = 0xFF000000  # the bits of infinity without the sign, one place to the left
_BEYOND = {"min": Op.FOrdGreaterThan, "max": Op.FOrdLessThan}
_BEFORE = {"min": Op.FOrdLessThan, "max": Op.FOrdGreaterThan}
_OF_NUMBERS = {"min": Glsl.NMin, "max": Glsl.NMax}


def keeps_nan(body: Body, type: Type) -> bool:
    """Whether comparisons of ``type`` may be relied on where an operand is NaN."""
    target = body.declarations.target
    is_half = type.scalar is Scalar.F16 and target.f16_arithmetic
    return (16 if is_half else 32) in target.keeps_special


def is_nan(body: Body, type: Type, x: Id) -> Id:
    """Which lanes of ``x`` are NaN."""
    if keeps_nan(body, type):
        return body.compare(Op.FUnordNotEqual, type, x, x)
    return _compare_size(body, Op.UGreaterThan, type, x)


def not_finite(body: Body, type: Type, x: Id) -> Id:
    """Which lanes of ``x`` are NaN or infinite."""
    return _compare_size(body, Op.UGreaterThanEqual, type, x)


def _compare_size(body: Body, op: Op, type: Type, x: Id) -> Id:
    """The bits of ``x``, but for its sign, next to those of infinity."""
    if type.scalar is Scalar.F16 and body.declarations.target.f16_arithmetic:
        x = body.emit(Op.FConvert, type.with_scalar(Scalar.F32), x)
    words = type.with_scalar(Scalar.U32)
    bits = body.emit(Op.Bitcast, words, x)
    twice = body.emit(Op.ShiftLeftLogical, words, bits, body.const(words, 1))
    limit = body.const(words, _INFINITY_TWICE)
    return body.emit(op, BOOL.with_width(type.width), twice, limit)


def extreme(body: Body, op: str, type: Type, a: Id, b: Id) -> Id:
    """``min`` or ``max`` of floats: NaN where either is."""
    if keeps_nan(body, type):
        kept = body.compare(_BEFORE[op], type, a, b)
        kept = body.emit(Op.LogicalOr, BOOL.with_width(type.width), kept, is_nan(body, type, a))
        return body.select(type, kept, a, b)
    found = limited(body, op, type, a, b)
    return body.select(type, is_nan(body, type, b), b, found)


def limited(body: Body, op: str, type: Type, x: Id, limit: Id) -> Id:
    """The same where ``limit`` is no NaN, which takes one comparison."""
    if keeps_nan(body, type):
        beyond = body.compare(_BEYOND[op], type, x, limit)
        return body.select(type, beyond, limit, x)
    found = body.glsl(_OF_NUMBERS[op], type, x, limit)
    return body.select(type, is_nan(body, type, x), x, found)


def foregone_result(body: Body, kind: Foregone, type: Type, x: Id) -> Id:
    """The one number that a result can be, or NaN, as ``x`` says."""
    one = kind is Foregone.ONE_OF_FINITE_NONZERO
    found, nan = body.const(type, float(one)), body.const(type, math.nan)
    if kind is not Foregone.ZERO_OF_NONZERO:
        found = body.select(type, not_finite(body, type, x), nan, found)
    if kind is not Foregone.ZERO_OF_FINITE:
        is_zero = body.compare(Op.FOrdEqual, type, x, body.const(type, 0.0))
        found = body.select(type, is_zero, nan, found)
        found = body.select(type, is_nan(body, type, x), nan, found)
    return found
