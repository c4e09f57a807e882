"""Numbers in OpenCL C."""

from __future__ import annotations

import math

from tflgpu.language.code import ATOM, UNARY, Code, shortest
from tflgpu.language.types import Scalar

#: The least number that rounds to infinity.
_OVERFLOW = {Scalar.F16: 65520.0, Scalar.F32: float.fromhex("0x1.ffffffp127")}


def float_number(value: float, scalar: Scalar) -> Code:
    """A float in the fewest digits that give it back, NaN and infinities by their macros. What
    overflows in ``scalar`` is infinite."""
    if math.isnan(value):
        return Code("NAN")
    if math.isinf(value) or abs(value) >= _OVERFLOW[scalar]:
        return Code("INFINITY") if value > 0 else Code("-INFINITY", UNARY)
    text = shortest(value, scalar) + "f"
    return Code(text, UNARY if text.startswith("-") else ATOM)
