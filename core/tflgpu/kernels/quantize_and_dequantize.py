"""The kernel of QUANTIZE_AND_DEQUANTIZE: an expression, which joins the store of what it rounds."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.quantize_and_dequantize import OP, QuantizeAndDequantize


def round_to_steps(k: Builder, stored: QuantizeAndDequantize, x: Expr) -> Expr:
    """The step that f32 lanes are stored as, a whole number in f32; halves go away from zero, or
    to the even step, and NaN to the highest."""
    high = float(stored.high)
    exact = k.let(x * stored.inverse, "exact")
    steps = k.select(exact.ne(exact), high, k.clamp(exact, float(stored.low), high))
    steps = k.let(steps, "steps")
    if stored.even:
        return k.call("round", steps)
    size = k.let(k.call("floor", k.call("abs", steps) + 0.5), "size")
    return k.select(steps < 0.0, -size, size)


def _simulate(k: Builder, attributes: QuantizeAndDequantize, operands: Sequence[Expr]) -> Expr:
    # In f32 in every precision: f16 has no room for the steps of a large scale.
    steps = round_to_steps(k, attributes, k.cast(operands[0], Scalar.F32))
    return k.cast(steps * attributes.scale, operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _simulate, takes(FLOATS)),)
