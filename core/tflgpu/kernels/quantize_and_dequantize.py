"""The kernel of QUANTIZE_AND_DEQUANTIZE: an expression, which joins the store of what it rounds."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernel.builder import Builder
from tflgpu.kernel.rule import ElementwiseRule
from tflgpu.kernel.tree import Expr
from tflgpu.kernel.types import Scalar
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.ops.quantize_and_dequantize import OP, QuantizeAndDequantize


def round_half_away(k: Builder, x: Expr) -> Expr:
    """The nearest whole number of f32 lanes, halves away from zero."""
    size = k.call("floor", k.call("abs", x) + 0.5)
    return k.select(x < 0.0, -size, size)


def _simulate(k: Builder, attributes: QuantizeAndDequantize, operands: Sequence[Expr]) -> Expr:
    # In f32 whatever the precision: f16 has no room for the steps of a large scale.
    x = k.cast(operands[0], Scalar.F32)
    steps = k.clamp(x * attributes.inverse, float(attributes.low), float(attributes.high))
    rounded = round_half_away(k, k.let(steps, "steps"))
    return k.cast(rounded * attributes.scale, operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _simulate, takes(FLOATS)),)
