"""Conversions between element types.

Tensors of 8, 16 or 64 bits do not live on a device; what converts them stays on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.ir.dtypes import DType
from tflgpu.kernel.builder import Builder
from tflgpu.kernel.rule import ElementwiseRule
from tflgpu.kernel.tree import Expr
from tflgpu.kernel.types import Scalar
from tflgpu.kernels.accept import ANY, FLOATS, takes


def _cast(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = operands[0]
    if attributes.output is DType.BOOL:
        return k.cast(x.ne(0), Scalar.I32)
    if attributes.output.is_float:
        # Between floats only the storage differs, and the store converts.
        return x if x.type.is_float else k.cast(x, Scalar.F32)
    return k.cast(x, Scalar.I32)


def _same(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    return operands[0]


RULES = (
    ElementwiseRule("CAST", _cast, takes(ANY)),
    ElementwiseRule("DEQUANTIZE", _same, takes(FLOATS)),
)
