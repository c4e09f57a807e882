"""The kernel of STORED_TOTAL: an expression, which joins the store of what it rounds."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.fixed_point import times
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.stored_total import LARGEST, OP, StoredTotal


def _total(k: Builder, attributes: StoredTotal, operands: Sequence[Expr]) -> Expr:
    result, zero = attributes.result, float(attributes.zero_point)
    # In f32 in every precision: f16 has no room for totals.
    total = k.call("round", k.cast(operands[0], Scalar.F32) * attributes.inverse)
    total = k.let(k.clamp(total, -float(LARGEST), float(LARGEST)), "total")
    if attributes.offset or attributes.away:
        total = k.select(k.is_nan(total), 0.0, total)
        total = k.let(total + float(attributes.offset), "moved")
    if attributes.multiplier is not None:
        whole = times(k, k.let(k.cast(total, Scalar.I32), "whole"), attributes.multiplier)
        if attributes.bias:
            whole = whole + int(attributes.bias)
        steps = k.cast(k.clamp(whole, result.low, result.high), Scalar.F32)
    elif attributes.away:
        steps = k.let(total * attributes.factor + attributes.bias, "steps")
        steps = k.call("trunc", steps + k.call("sign", steps) * 0.5)
        steps = k.clamp(steps, float(result.low), float(result.high))
    else:
        total = k.select(k.is_nan(total), 0.0, total)
        steps = k.call("round", total * attributes.factor + zero) - zero
        steps = k.clamp(steps, float(result.low), float(result.high))
    return k.cast(steps * result.scale, operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _total, takes(FLOATS)),)
