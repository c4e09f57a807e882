"""RELU family, and the fused activations of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.errors import KernelError
from tflgpu.kernels.unary import tanh
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import ElementwiseExpr
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.base import Activation


def clamp(low: float | None, high: float | None) -> ElementwiseExpr:
    """An expression that limits its one operand; None = no limit."""

    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        x = operands[0]
        if low is not None:
            x = k.max(x, low)
        return x if high is None else k.min(x, high)

    return expr


def activate(k: Builder, activation: Activation, value: Expr) -> Expr:
    """Apply an op's fused activation to its result, f16 or f32 lanes.

    Raises:
        KernelError: SIGN_BIT, which parsing refuses or leaves out.
    """
    if activation is Activation.NONE:
        return value
    if activation is Activation.TANH:
        return tanh(k, value)
    if activation not in _LIMITS:
        raise KernelError(f"fused activation {activation.name} is defined by no kernel")
    return clamp(*_LIMITS[activation])(k, None, [value])


def _leaky_relu(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(operands[0], "x")
    return k.select(x > 0.0, x, x * float(attributes.alpha))


def _prelu(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(operands[0], "x")
    return k.select(x >= 0.0, x, x * operands[1])


_LIMITS: dict[Activation, tuple[float | None, float | None]] = {
    Activation.RELU: (0.0, None),
    Activation.RELU_N1_TO_1: (-1.0, 1.0),
    Activation.RELU6: (0.0, 6.0),
}

RULES = (
    ElementwiseRule("RELU", clamp(0.0, None), takes(FLOATS)),
    ElementwiseRule("RELU6", clamp(0.0, 6.0), takes(FLOATS)),
    ElementwiseRule("RELU_N1_TO_1", clamp(-1.0, 1.0), takes(FLOATS)),
    ElementwiseRule("RELU_0_TO_1", clamp(0.0, 1.0), takes(FLOATS)),
    ElementwiseRule("LEAKY_RELU", _leaky_relu, takes(FLOATS)),
    ElementwiseRule("PRELU", _prelu, takes(FLOATS)),
)
