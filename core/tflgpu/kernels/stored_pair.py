"""The kernel of STORED_PAIR: an expression on whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.fixed_point import times
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.fixed_point import Multiplier
from tflgpu.ops.stored_pair import OP, POINT, SUMS, WIDE_POINT, How, StoredPair


def _whole(k: Builder, attributes: StoredPair, a: Expr, b: Expr) -> Expr:
    """The steps of the result, not clamped, from whole numbers."""
    if attributes.how is How.SUM:
        left, right, shift = attributes.numbers
        return (a * left + b * right + (1 << (shift - 1))) >> shift
    if attributes.how in SUMS:
        one, two, three = attributes.multipliers
        bits = WIDE_POINT, WIDE_POINT
        if attributes.how is How.ALIGNED:
            bits = WIDE_POINT + one.shift, WIDE_POINT + two.shift
            one, two = Multiplier(one.value, 0), Multiplier(two.value, 0)
        x1 = k.let(times(k, a << bits[0], one), "x1")
        x2 = k.let(times(k, b << bits[1], two), "x2")
        return times(k, x1 - x2 if attributes.how is How.SUBTRACTED else x1 + x2, three)
    if attributes.how is How.MULTIPLIED:
        (one,) = attributes.multipliers
        return times(k, a * b, one)
    if attributes.how is How.SQUARE:
        one, two, three = attributes.multipliers
        difference = k.let(times(k, a << POINT, one) - times(k, b << POINT, two), "difference")
        return times(k, difference * difference, three)
    one, two = attributes.multipliers
    return k.select(a >= 0, times(k, a, one), times(k, a * b, two))


def _pair(k: Builder, attributes: StoredPair, operands: Sequence[Expr]) -> Expr:
    kind, result = operands[0].type.scalar, attributes.result
    # In f32 in every precision: f16 has no room for the steps.
    a, b = (
        round_to_steps(k, stored, k.cast(x, Scalar.F32))
        for x, stored in zip(operands, (attributes.left, attributes.right), strict=True)
    )
    if attributes.how is How.PRODUCT:
        steps = k.call("round", k.let(a * b, "product") * attributes.factor)
        steps = k.clamp(steps, float(result.low), float(result.high))
        return k.cast(steps * result.scale, kind)
    a, b = (k.let(k.cast(x, Scalar.I32), "steps") for x in (a, b))
    whole = k.clamp(_whole(k, attributes, a, b), result.low, result.high)
    return k.cast(k.cast(whole, Scalar.F32) * result.scale, kind)


RULES = (ElementwiseRule(OP, _pair, takes(FLOATS)),)
