"""The kernel of STORED_HARD_SWISH: an expression on whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.fixed_point import shift_right
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.stored_hard_swish import HIGH, LOW, OP, POINT, StoredHardSwish


def _towards_zero(k: Builder, x: Expr) -> Expr:
    """``x / 2**15``."""
    x = k.let(x, "x")
    return k.select(x < 0, -((-x) >> 15), x >> 15)


def _fraction(k: Builder, a: Expr, b: int) -> Expr:
    product = k.let(a * b, "product")
    half = k.select(
        product >= 0, k.const(1 << 14, product.type), k.const(1 - (1 << 14), product.type)
    )
    return k.let(k.clamp(_towards_zero(k, product + half), LOW, HIGH), "fraction")


def _hard_swish(k: Builder, attributes: StoredHardSwish, operands: Sequence[Expr]) -> Expr:
    linear, bent, result = attributes.linear, attributes.bent, attributes.result
    # In f32 in every precision: f16 has no room for the steps of a large scale.
    steps = round_to_steps(k, attributes.operand, k.cast(operands[0], Scalar.F32))
    wide = k.let(k.cast(steps, Scalar.I32) << POINT, "wide")
    straight, share = _fraction(k, wide, linear.value), wide
    if bent.left:
        share = k.clamp(share << (bent.left - 1), LOW, HIGH)
    share = _fraction(k, share, bent.value)
    if bent.left:
        share = k.clamp(share << 1, LOW, HIGH)
    share = (shift_right(k, share, bent.right) + (1 << 15)) >> 1
    found = shift_right(k, k.let(_towards_zero(k, share * straight), "found"), linear.right)
    whole = k.cast(k.clamp(found, result.low, result.high), Scalar.F32)
    return k.cast(whole * result.scale, operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _hard_swish, takes(FLOATS)),)
