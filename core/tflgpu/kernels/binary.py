"""Arithmetic of two elements, and sums of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add, or_
from typing import Any

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering, Temp
from tflgpu.lowering.rule import FLOATS, NUMBERS, ElementwiseRule, KernelRule, Site, takes
from tflgpu.ops.base import Activation
from tflgpu.ops.stored_quotient import APART, StoredQuotient

Pair = Callable[[Builder, Expr, Expr], Expr]


def pair(fn: Pair) -> ElementwiseExpr:
    """Of two operands, each of which is computed once."""

    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        return fn(k, k.let(operands[0], "a"), k.let(operands[1], "b"))

    return expr


def _fused(fn: Pair) -> ElementwiseExpr:
    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        return _activated(k, attributes, fn(k, operands[0], operands[1]))

    return expr


def _quotient(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    stored: StoredQuotient | None = attributes.stored
    if stored is None:
        return _fused(_div)(k, attributes, operands)
    a, b = (k.let(k.cast(x, Scalar.F32), "x") for x in operands)
    steps = k.let(round_to_steps(k, stored.left, a), "steps")
    by = k.let(round_to_steps(k, stored.right, b), "by")
    found = k.let(round_to_steps(k, stored.result, a / b), "found")
    signed = k.let(k.select(by < 0.0, -steps, steps), "signed")
    size = k.let(k.select(signed < 0.0, -signed - 1.0, signed), "size")
    bits = _bits(k, k.let(k.call("abs", by), "of"))
    apart = k.let(bits - _bits(k, size), "apart")
    limits = stored.result
    least = float(min(max(1, limits.low), limits.high))
    beyond = k.select(signed > 0.0, k.const(float(limits.high), signed.type), float(limits.low))
    beyond = k.select(signed.eq(0.0), k.const(least, signed.type), beyond)
    steps = k.select(apart >= float(APART + stored.shift), beyond, found)
    return _activated(k, attributes, k.cast(steps * limits.scale, operands[0].type.scalar))


def _bits(k: Builder, size: Expr) -> Expr:
    """How many bits whole numbers of 8 bits have, 0 for 0, in f32."""
    one, none = k.const(1.0, size.type), k.const(0.0, size.type)
    count = none
    for bit in range(9):
        count = count + k.select(size >= float(1 << bit), one, none)
    return count


def _activated(k: Builder, attributes: Any, value: Expr) -> Expr:
    if value.type.is_float:
        return activate(k, attributes.activation, value)
    low, high = _WHOLE_LIMITS[attributes.activation]
    if low is not None:
        value = k.max(value, low)
    return value if high is None else k.min(value, high)


_WHOLE_LIMITS: dict[Activation, tuple[int | None, int | None]] = {
    Activation.NONE: (None, None),
    Activation.RELU: (0, None),
    Activation.RELU_N1_TO_1: (-1, 1),
    Activation.RELU6: (0, 6),
}


def _accepts_fused(node: Node, site: Site) -> str | None:
    activation = node.attrs.activation
    if not node.outputs[0].dtype.is_float and activation not in _WHOLE_LIMITS:
        return f"{node.op}: fused {activation.name} of whole numbers"
    return takes(NUMBERS)(node, site)


def _divided(k: Builder, a: Expr, b: Expr) -> tuple[Expr, Expr, Expr]:
    """The quotient of whole numbers, cut off; what is left; and the divisor, 1 in the place of what
    nothing may be divided by.

    That is 0, as the padding lanes of a tensor are divided as well and on some devices a division
    by zero traps; and -1, by which the smallest number traps on x86 and is anything in OpenCL C.
    """
    turned = k.let(b.eq(-1), "turned")
    safe = k.let(k.select(b.eq(0) | turned, k.const(1, b.type), b), "safe")
    quotient = k.let(a // safe, "q")
    rest = k.let(a - quotient * safe, "r")
    return k.select(turned, -quotient, quotient), rest, safe


def _div(k: Builder, a: Expr, b: Expr) -> Expr:
    return a / b if a.type.is_float else _divided(k, a, b)[0]


def _floor_parts(k: Builder, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Floored quotient and its remainder, which has the divisor's sign.

    Floats are computed in f32, from the remainder: a quotient close to a whole number can round
    to the wrong side of it.
    """
    if not a.type.is_float:
        quotient, rest, safe = _divided(k, a, b)
        zero, one = k.const(0, a.type), k.const(1, a.type)
        off = k.let(rest.ne(0) & (rest < 0).ne(safe < 0), "off")
        return quotient - k.select(off, one, zero), rest + k.select(off, safe, zero)
    a, b = k.let(k.cast(a, Scalar.F32), "a32"), k.let(k.cast(b, Scalar.F32), "b32")
    rest = _remainder(k, a, b)
    apart = k.let(rest.ne(0.0) & (rest < 0.0).ne(b < 0.0), "apart")
    # A device's division may be a few units off. What is left of a without the remainder is a
    # multiple of b, and both steps to the floored quotient are whole numbers, so only their sum
    # with the first guess is rounded, where it is too large for a float to have all its digits.
    guess = k.let(k.call("round", a / b), "guess")
    left = k.fma(-guess, b, a) - rest
    steps = k.call("round", left / b) - k.select(apart, k.const(1.0, b.type), 0.0)
    fits = k.call("abs", guess) < _LARGEST_QUOTIENT  # of an infinite one nothing is left
    quotient = k.select(fits, guess + steps, guess)
    # There are no multiples where the remainder is NaN, nor of an infinity.
    odd = k.call("isnan", rest) | k.call("abs", b).eq(math.inf)
    return k.select(odd, k.call("floor", a / b), quotient), k.select(apart, rest + b, rest)


#: Close to the largest float.
_LARGEST_QUOTIENT = 3.4e38
#: Powers of two that a divisor is multiplied by before it is taken off, so that all quotients on
#: the way have few enough bits: from the largest number over the smallest down to 1.
_SCALES = range(260, -1, -20)


def _remainder(k: Builder, a: Expr, b: Expr) -> Expr:
    """C's fmod of f32 lanes, exactly: of ``a``'s sign, and NaN of an infinite ``a`` or b = 0."""
    size, unit = k.let(k.call("abs", a), "size"), k.let(k.call("abs", b), "unit")
    ratio, once = _taken_off(k, size, unit)
    rest = k.var(once, "rest")
    large = k.let(ratio >= 2.0**22, "large")
    lanes = [large.lane(i) for i in range(large.type.width)] if large.type.width > 1 else [large]
    with k.if_(reduce(or_, lanes)):  # rarely: the quotient has more digits than a float
        k.set(rest, size)
        for scale in _SCALES:
            part = k.let(unit * 2.0 ** min(scale, 120), "part")
            for more in (scale - 120, scale - 240):
                if more > 0:
                    part = k.let(part * 2.0 ** min(more, 120), "part")
            before = k.let(rest, "before")
            left = _taken_off(k, before, part)[1]
            k.set(rest, k.select(before >= part, left, before))
    found = k.let(k.select(size < unit, size, rest), "found")
    none = size.eq(math.inf) | unit.eq(0.0) | k.call("isnan", unit)
    found = k.select(none, k.const(math.nan, found.type), found)
    return k.let(k.select(a < 0.0, -found, found), "rest")


def _taken_off(k: Builder, value: Expr, part: Expr) -> tuple[Expr, Expr]:
    """How often ``part`` goes into ``value`` (both positive), as a division has it that may be a
    little off, and what is exactly left of ``value``."""
    count = k.let(k.call("trunc", value / part), "count")
    left = k.let(k.fma(-count, part, value), "left")
    # Off by one. It is computed anew, as what is more than one `part` may be rounded.
    more = k.select(left >= part, k.const(1.0, part.type), k.const(0.0, part.type))
    count_now = count + k.select(left < 0.0, k.const(-1.0, part.type), more)
    return count, k.let(k.fma(-count_now, part, value), "left")


def _floored(which: int, k: Builder, a: Expr, b: Expr) -> Expr:
    return k.cast(_floor_parts(k, a, b)[which], a.type.scalar)


def _squared_difference(k: Builder, a: Expr, b: Expr) -> Expr:
    gap = k.let(a - b, "gap")
    return gap * gap


def remainder(k: Builder, a: Expr, b: Expr) -> Expr:
    """The remainder of a division that cuts off, with ``a``'s sign: exact, and NaN of a float by 0.
    Of a whole number by 0 it is anything."""
    if not a.type.is_float:
        return _divided(k, a, b)[1]
    wide_a, wide_b = (k.let(k.cast(x, Scalar.F32), "wide") for x in (a, b))
    return k.cast(_remainder(k, wide_a, wide_b), a.type.scalar)


def _add_n(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    kind = operands[0].type.scalar
    wide = [k.cast(x, Scalar.F32) if kind.is_float else x for x in operands]
    return k.cast(reduce(add, wide), kind)


def accepts_remainder(node: Node, site: Site) -> str | None:
    """`KernelRule.accepts` of an op whose result comes from a remainder."""
    if not site.caps.fused_fma and node.input(0).dtype.is_float:
        return (
            f"{node.op} of floats needs a multiply-add with one rounding, and this device's "
            "rounds twice"
        )
    return takes(NUMBERS)(node, site)


def _fits_one_kernel(node: Node, site: Site) -> bool:
    return len(node.inputs) < site.caps.max_bindings


def _accepts_add_n(node: Node, site: Site) -> str | None:
    if not _fits_one_kernel(node, site):
        return f"ADD_N: {len(node.inputs)} operands are too many for one kernel"
    return takes(NUMBERS)(node, site)


def _accepts_add_n_in_turns(node: Node, site: Site) -> str | None:
    if _fits_one_kernel(node, site):
        return "ADD_N: one kernel is enough"
    return takes(FLOATS)(node, site)


def _add_n_in_turns(low: Lowering) -> None:
    """As many operands a dispatch as it can bind; the sum goes on in an f32 temporary."""
    operands = list(range(len(low.node.inputs)))
    out_layout = low.layout(low.node.outputs[0])
    total: Temp | None = None
    while operands:
        room = low.caps.max_bindings - (1 if total is None else 2)
        turn, operands = operands[:room], operands[room:]
        k = low.kernel("add_n")
        views = [] if total is None else [low.read_temp(k, total)]
        views += [low.read(k, i) for i in turn]
        if operands:
            total = low.temp(out_layout.shape, Scalar.F32)
            out = low.write_temp(k, total, "sum")
        else:
            out = low.write(k)
        with each_vector(low, k, out) as (outer, slice_):
            terms = [k.cast(view.load(outer, slice_), Scalar.F32) for view in views]
            out.store(outer, slice_, _add_n(k, None, terms))


RULES = (
    ElementwiseRule("ADD", _fused(lambda k, a, b: a + b), _accepts_fused),
    ElementwiseRule("SUB", _fused(lambda k, a, b: a - b), _accepts_fused),
    ElementwiseRule("MUL", _fused(lambda k, a, b: a * b), _accepts_fused),
    ElementwiseRule("DIV", _quotient, _accepts_fused),
    ElementwiseRule("MAXIMUM", pair(lambda k, a, b: k.max(a, b)), takes(NUMBERS)),
    ElementwiseRule("MINIMUM", pair(lambda k, a, b: k.min(a, b)), takes(NUMBERS)),
    ElementwiseRule("SQUARED_DIFFERENCE", pair(_squared_difference), takes(NUMBERS)),
    ElementwiseRule("POW", pair(lambda k, a, b: k.call("pow", a, b)), takes(FLOATS)),
    ElementwiseRule("FLOOR_DIV", pair(partial(_floored, 0)), accepts_remainder),
    ElementwiseRule("FLOOR_MOD", pair(partial(_floored, 1)), accepts_remainder),
    ElementwiseRule("ATAN2", pair(lambda k, a, b: k.call("atan2", a, b)), takes(FLOATS)),
    ElementwiseRule("ADD_N", _add_n, _accepts_add_n),
    KernelRule("ADD_N", "in_turns", _add_n_in_turns, _accepts_add_n_in_turns),
)
