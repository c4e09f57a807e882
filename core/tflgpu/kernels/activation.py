"""RELU family, and the fused activations of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.kernel.builder import Builder
from tflgpu.kernel.lowering import ElementwiseExpr
from tflgpu.kernel.rule import ElementwiseRule
from tflgpu.kernel.tree import Expr


def clamp(low: float | None, high: float | None) -> ElementwiseExpr:
    """An expression that limits its one operand; None = no limit."""

    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        x = operands[0]
        if low is not None:
            x = k.max(x, low)
        return x if high is None else k.min(x, high)

    return expr


RULES = (
    ElementwiseRule("RELU", clamp(0.0, None)),
    ElementwiseRule("RELU6", clamp(0.0, 6.0)),
    ElementwiseRule("RELU_N1_TO_1", clamp(-1.0, 1.0)),
)
