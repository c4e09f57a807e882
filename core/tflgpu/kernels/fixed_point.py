"""Products of `tflgpu.ops.fixed_point` in a language that has no 64-bit numbers."""

from __future__ import annotations

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.ops.fixed_point import Multiplier


def times(k: Builder, x: Expr, by: Multiplier) -> Expr:
    """i32 lanes times one factor, as `ops.fixed_point.multiply`."""
    if by.value == 0:
        return k.const(0, x.type)
    shifted = k.let(x << by.left, "shifted") if by.left else x
    return shift_right(k, upper_half(k, shifted, by.value), by.right)


def times_once(k: Builder, x: Expr, value: Expr, right: Expr) -> Expr:
    """``x * value / 2**(31 + right)`` of i32 lanes, rounded once to the nearest, halves up."""
    x = k.let(x, "x")
    # Cut, it loses nothing that the second half would need.
    return k.select(
        right > 0, up(k, upper_half(k, x, value, down=True), right), upper_half(k, x, value)
    )


def up(k: Builder, x: Expr, bits: Expr) -> Expr:
    """``x / 2**bits`` of i32 lanes, rounded to the nearest, halves up."""
    half = (k.const(1, x.type) << bits) >> 1
    return (x + half) >> bits


def upper_half(k: Builder, x: Expr, value: Operand, *, down: bool = False) -> Expr:
    """``x * value / 2**31``, rounded to the nearest, halves up; or ``down``.

    ``x`` is any i32, ``value`` a number from 0 to below 2**31 or i32 lanes of such. The product of
    two numbers of 16-bit halves is put together from four, of which none needs more than 32 bits:

        x * value = 2**32 * xh * vh + 2**16 * (xh * vl + xl * vh) + xl * vl
    """
    x = k.let(x, "x")
    if isinstance(value, Expr):
        value = k.let(value, "value")
        high, low = k.let(value >> 16, "vh"), k.let(value & 0xFFFF, "vl")
    else:
        high, low = k.i32(int(value) >> 16), k.i32(int(value) & 0xFFFF)
    xh, xl = k.let(x >> 16, "xh"), k.let(x & 0xFFFF, "xl")
    # The one product that takes all 32 bits, without a sign.
    lowest = k.cast(xl, Scalar.U32) * k.cast(low, Scalar.U32)
    carry = k.cast(lowest >> 16, Scalar.I32)
    middle = k.let(xh * low + carry, "middle")
    rest = k.let(xl * high + (middle & 0xFFFF), "rest")  # never negative
    upper = xh * high + (middle >> 16) + (rest >> 16)
    # 2**32 are two of 2**31, and the two bits below say which of those is the nearest.
    below = ((rest >> 14) & 3) + (0 if down else 1)
    return upper * 2 + (below >> 1)


def shift_right(k: Builder, x: Expr, bits: Operand) -> Expr:
    """``x / 2**bits``, rounded to the nearest, halves away from zero; ``bits`` is a number from 0
    to 31 or i32 lanes of such."""
    if not isinstance(bits, Expr) and int(bits) == 0:
        return x
    x = k.let(x, "x")
    one, none = k.const(1, x.type), k.const(0, x.type)
    if isinstance(bits, Expr):
        bits = k.let(bits, "bits")
        mask: Expr = k.let((one << bits) - 1, "mask")
        half = mask >> 1
    else:
        mask = k.i32((1 << int(bits)) - 1)
        half = k.i32(((1 << int(bits)) - 1) >> 1)
    threshold = k.select(x < 0, one, none) + half
    return (x >> bits) + k.select((x & mask) > threshold, one, none)
