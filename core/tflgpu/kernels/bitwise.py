"""BITWISE_XOR and RIGHT_SHIFT of 32-bit whole numbers."""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.kernels.binary import pair
from tflgpu.lowering.rule import ElementwiseRule, takes

_I32 = frozenset({DType.I32})


RULES = (
    ElementwiseRule("BITWISE_XOR", pair(lambda k, a, b: a ^ b), takes(_I32, results=_I32)),
    # APIs leave counts undefined that are negative or not below the number's bits.
    ElementwiseRule(
        "RIGHT_SHIFT", pair(lambda k, a, b: a >> k.clamp(b, 0, 31)), takes(_I32, results=_I32)
    ),
)
