"""The kernel of FIT_BITS: an expression on whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import BYTES, ElementwiseRule, takes
from tflgpu.ops.fit_bits import OP, FitBits


def _fit(k: Builder, attributes: FitBits, operands: Sequence[Expr]) -> Expr:
    x = operands[0]
    if attributes.wraps:
        return ((x - attributes.low) & ((1 << attributes.bits) - 1)) + attributes.low
    return k.clamp(x, attributes.low, attributes.high)


RULES = (ElementwiseRule(OP, _fit, takes(BYTES, results=BYTES)),)
