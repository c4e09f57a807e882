"""The kernel of ROUND_TO_BF16: an expression, which joins the store of what it rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, takes
from tflgpu.ops.round_to_bf16 import OP

_NUMBER = 0x7FFFFFFF
_INFINITY = 0x7F800000


def _round(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(k.cast(operands[0], Scalar.F32), "x")
    bits = k.let(k.bitcast(x, Scalar.U32), "bits")
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    # Asked of the bits: a device may compute as if there were no NaN.
    kept = k.select((bits & _NUMBER) > _INFINITY, bits, nearest)
    return k.cast(k.bitcast(kept, Scalar.F32), operands[0].type.scalar)


RULES = (ElementwiseRule(OP, _round, takes(FLOATS)),)
