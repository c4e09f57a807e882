"""The kernel of QUANTIZED_ADD: an expression on whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.fixed_point import times
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import BYTES, ElementwiseRule, takes
from tflgpu.ops.quantized_add import OP, POINT, QuantizedAdd, Term


def _add(k: Builder, attributes: QuantizedAdd, operands: Sequence[Expr]) -> Expr:
    a, b = (
        _to_sum(k, x, term)
        for x, term in zip(operands, (attributes.left, attributes.right), strict=True)
    )
    result = attributes.result
    stored = times(k, a + b, result.multiplier) + result.zero_point
    return k.clamp(stored, attributes.low, attributes.high)


def _to_sum(k: Builder, x: Expr, term: Term) -> Expr:
    return k.let(times(k, (x - term.zero_point) << POINT, term.multiplier), "term")


RULES = (ElementwiseRule(OP, _add, takes(BYTES, results=BYTES)),)
