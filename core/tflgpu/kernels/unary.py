"""Functions of one element.

None of them overflows on the way to a finite result, in f16 either: intermediate exponentials
are of numbers that are not positive, and arguments that saturate a function are clamped first,
because a driver may turn infinities into anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.ir.dtypes import DType
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import ElementwiseExpr
from tflgpu.lowering.rule import BOOLS, FLOATS, NUMBERS, ElementwiseRule, takes

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def tanh(k: Builder, x: Expr) -> Expr:
    """The hyperbolic tangent of f16 or f32 lanes; within the limits ``exp(2x)`` is finite, beyond
    them the result rounds to 1."""
    limit = 5.0 if x.type.scalar is Scalar.F16 else 10.0
    return k.call("tanh", k.clamp(x, -limit, limit))


def logistic(k: Builder, x: Expr) -> Expr:
    """``1 / (1 + exp(-x))``."""
    small = k.let(k.call("exp", -k.call("abs", x)), "small")
    one = k.const(1.0, x.type)
    return k.select(x >= 0.0, one, small) / (small + 1.0)


def expm1(k: Builder, x: Expr) -> Expr:
    """``exp(x) - 1`` for x <= 0, exact near 0, where the difference would cancel."""
    series = k.const(1.0, x.type)
    for n in range(6, 1, -1):  # the next term is below 5e-8 of the sum for |x| < 0.25
        series = k.fma(series, x * (1.0 / n), 1.0)
    return k.select(x > -0.25, x * series, k.call("exp", x) - 1.0)


def _one(fn: Callable[[Builder, Expr], Expr]) -> ElementwiseExpr:
    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        return fn(k, k.let(operands[0], "x"))

    return expr


def _call(name: str) -> ElementwiseExpr:
    return _one(lambda k, x: k.call(name, x))


def _gelu(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(operands[0], "x")
    if attributes.approximate:
        near = k.let(k.clamp(x, -8.0, 8.0), "near")  # its cube is finite in f16
        inner = (near + near * near * near * 0.044715) * _SQRT_2_OVER_PI
        bend = tanh(k, inner)
    else:
        bend = k.call("erf", x * math.sqrt(0.5))
    # From there on it is -1, but PoCL's tanh stops a unit before: times 3e38 that is no zero.
    bend = k.select(x <= -8.0, -1.0, bend)
    return x * 0.5 * (bend + 1.0)


def _rule(op: str, expr: ElementwiseExpr, types: frozenset[DType] = FLOATS) -> ElementwiseRule:
    return ElementwiseRule(op, expr, takes(types))


RULES = (
    _rule("ABS", _call("abs"), NUMBERS),
    _rule("NEG", _one(lambda k, x: -x), NUMBERS),
    _rule("SIGN", _call("sign"), NUMBERS),
    _rule("SQUARE", _one(lambda k, x: x * x)),
    *(
        _rule(name.upper(), _call(name))
        for name in ("sqrt", "rsqrt", "exp", "log", "sin", "cos", "floor", "ceil", "round")
    ),
    _rule("TANH", _one(tanh)),
    _rule("LOGISTIC", _one(logistic)),
    _rule("ELU", _one(lambda k, x: k.select(x > 0.0, x, expm1(k, k.let(k.min(x, 0.0), "below"))))),
    _rule("GELU", _gelu),
    _rule("HARD_SWISH", _one(lambda k, x: x * (k.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)))),
    _rule("LOGICAL_NOT", _one(lambda k, x: k.cast(x.eq(0), Scalar.I32)), BOOLS),
)
