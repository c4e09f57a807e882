"""StableHLO's arithmetic of floats, 32-bit whole numbers and booleans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.ir.dtypes import DType
from tflgpu.kernels.binary import accepts_remainder, pair, remainder
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import ANY, BOOLS, FLOATS, NUMBERS, ElementwiseRule, takes

_I32 = frozenset({DType.I32})


def _shift(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x, count = operands[0], k.let(operands[1], "count")
    inside = count.eq(count & 31)  # APIs leave other counts open
    return k.select(inside, x << (count & 31), k.const(0, x.type))


def _clamp(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    low, x, high = operands
    return k.min(k.let(k.max(x, low), "raised"), high)


def _cbrt(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(operands[0], "x")
    root = k.let(k.call("pow", k.call("abs", x), k.const(1.0 / 3.0, x.type)), "root")
    return k.select(x < 0.0, -root, root)


RULES = (
    ElementwiseRule("STABLEHLO_ADD", pair(lambda k, a, b: a + b), takes(NUMBERS, results=NUMBERS)),
    ElementwiseRule(
        "STABLEHLO_MULTIPLY", pair(lambda k, a, b: a * b), takes(NUMBERS, results=NUMBERS)
    ),
    ElementwiseRule("STABLEHLO_MAXIMUM", pair(lambda k, a, b: k.max(a, b)), takes(ANY)),
    ElementwiseRule("STABLEHLO_MINIMUM", pair(lambda k, a, b: k.min(a, b)), takes(ANY)),
    # Booleans are 0 or 1.
    ElementwiseRule("STABLEHLO_AND", pair(lambda k, a, b: a & b), takes(_I32 | BOOLS)),
    ElementwiseRule("STABLEHLO_SHIFT_LEFT", _shift, takes(_I32, results=_I32)),
    ElementwiseRule("STABLEHLO_REMAINDER", pair(remainder), accepts_remainder),
    ElementwiseRule("STABLEHLO_CLAMP", _clamp, takes(NUMBERS)),
    ElementwiseRule("STABLEHLO_CBRT", _cbrt, takes(FLOATS)),
)
