"""BITWISE_XOR and RIGHT_SHIFT of 32-bit whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.ir.dtypes import DType
from tflgpu.kernels.accept import takes
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import ElementwiseRule

_I32 = frozenset({DType.I32})


def _xor(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    return operands[0] ^ operands[1]


def _shift(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    # APIs leave counts undefined that are negative or not below the number's bits.
    return operands[0] >> k.clamp(operands[1], 0, 31)


RULES = (
    ElementwiseRule("BITWISE_XOR", _xor, takes(_I32, results=_I32)),
    ElementwiseRule("RIGHT_SHIFT", _shift, takes(_I32, results=_I32)),
)
