"""The kernel of STORED_DIGIT: an expression on whole numbers in f32."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.stored_digit import OP, StoredDigit


def _digit(k: Builder, attributes: StoredDigit, operands: Sequence[Expr]) -> Expr:
    base, last = float(1 << attributes.bits), attributes.count - 1
    # In f32 in every precision: f16 has no room for the steps.
    rest = k.let(round_to_steps(k, attributes.stored, k.cast(operands[0], Scalar.F32)), "rest")
    digit = rest
    for at in range(attributes.index + 1):
        if at == last:
            digit = rest
            break
        upper = k.let(k.call("floor", (rest + base / 2) * (1 / base)), "upper")
        digit, rest = rest - upper * base, upper
    return k.cast(digit, operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _digit, takes(FLOATS)),)
