"""Arithmetic of two elements, and sums of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.ir.graph import Node
from tflgpu.kernel.builder import Builder
from tflgpu.kernel.grid import launch, spread
from tflgpu.kernel.lowering import ElementwiseExpr, Lowering, Temp
from tflgpu.kernel.rule import ElementwiseRule, KernelRule, Site
from tflgpu.kernel.tree import Expr
from tflgpu.kernel.types import Scalar
from tflgpu.kernels.accept import FLOATS, NUMBERS, takes
from tflgpu.kernels.activation import activate
from tflgpu.ops.base import Activation

_WORKGROUP = 64

Pair = Callable[[Builder, Expr, Expr], Expr]


def _pair(fn: Pair) -> ElementwiseExpr:
    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        return fn(k, k.let(operands[0], "a"), k.let(operands[1], "b"))

    return expr


def _fused(fn: Pair) -> ElementwiseExpr:
    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        return _activated(k, attributes, fn(k, operands[0], operands[1]))

    return expr


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


def _divisor(k: Builder, b: Expr) -> Expr:
    """``b`` without zeros: the padding lanes of a whole-number tensor are divided as well, and
    on some devices a division by zero traps."""
    return k.select(b.eq(0), k.const(1, b.type), b)


def _div(k: Builder, a: Expr, b: Expr) -> Expr:
    return a / b if a.type.is_float else a // _divisor(k, b)


def _floor_parts(k: Builder, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Floored quotient and its remainder, which has the divisor's sign.

    Floats are computed in f32. A quotient close to a whole number can round to the wrong side
    of it; the sign of the remainder tells, and it is exact up to one rounding.
    """
    if not a.type.is_float:
        safe = k.let(_divisor(k, b), "safe")
        quotient = k.let(a // safe, "q")
        rest = k.let(a - quotient * safe, "r")
        zero, one = k.const(0, a.type), k.const(1, a.type)
        off = k.let(rest.ne(0) & (rest < 0).ne(safe < 0), "off")
        return quotient - k.select(off, one, zero), rest + k.select(off, safe, zero)
    a, b = k.cast(a, Scalar.F32), k.let(k.cast(b, Scalar.F32), "b32")
    quotient = k.let(k.call("floor", a / b), "q")
    rest = k.let(k.fma(-quotient, b, a), "r")
    zero = k.const(0.0, b.type)
    below = k.let((rest * k.call("sign", b)) < 0.0, "below")
    above = k.let(k.call("abs", rest) >= k.call("abs", b), "above") & ~below
    step = k.let(k.select(below, zero - 1.0, k.select(above, zero + 1.0, zero)), "step")
    return quotient + step, k.fma(-step, b, rest)


def _floor_div(k: Builder, a: Expr, b: Expr) -> Expr:
    return k.cast(_floor_parts(k, a, b)[0], a.type.scalar)


def _floor_mod(k: Builder, a: Expr, b: Expr) -> Expr:
    return k.cast(_floor_parts(k, a, b)[1], a.type.scalar)


def _pow(k: Builder, a: Expr, b: Expr) -> Expr:
    """Like C's pow for a negative base too, which shading languages leave undefined."""
    magnitude = k.let(k.call("pow", k.call("abs", a), b), "power")
    whole = k.call("floor", b).eq(b)
    half = k.let(b * 0.5, "half")
    odd = whole & k.call("floor", half).ne(half)
    signed = k.select(odd, -magnitude, magnitude)
    # The square root of a negative number is the NaN that is wanted.
    negative = k.select(whole, signed, k.call("sqrt", a))
    one = k.const(1.0, a.type)
    return k.select(b.eq(0.0), one, k.select(a < 0.0, negative, magnitude))


def _squared_difference(k: Builder, a: Expr, b: Expr) -> Expr:
    gap = k.let(a - b, "gap")
    return gap * gap


def _add_n(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    kind = operands[0].type.scalar
    wide = [k.cast(x, Scalar.F32) if kind.is_float else x for x in operands]
    total = wide[0]
    for x in wide[1:]:
        total = total + x
    return k.cast(total, kind)


def _accepts_floored(node: Node, site: Site) -> str | None:
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
    count = out_layout.outer * out_layout.slices
    total: Temp | None = None
    while operands:
        room = low.caps.max_bindings - (1 if total is None else 2)
        turn, operands = operands[:room], operands[room:]
        k = low.kernel("add_n", (_WORKGROUP, 1, 1))
        views = [] if total is None else [low.read_temp(k, total)]
        views += [low.read(k, i) for i in turn]
        if operands:
            total = low.temp(out_layout.shape, Scalar.F32)
            out = low.write_temp(k, total, "sum")
        else:
            out = low.write(k)
        i = spread(low, k, count)
        outer, slice_ = k.let(i // out.slices, "outer"), k.let(i % out.slices, "slice")
        terms = [k.cast(view.load(outer, slice_), Scalar.F32) for view in views]
        out.store(outer, slice_, _add_n(k, None, terms))
        launch(low, k, count)


RULES = (
    ElementwiseRule("ADD", _fused(lambda k, a, b: a + b), _accepts_fused),
    ElementwiseRule("SUB", _fused(lambda k, a, b: a - b), _accepts_fused),
    ElementwiseRule("MUL", _fused(lambda k, a, b: a * b), _accepts_fused),
    ElementwiseRule("DIV", _fused(_div), _accepts_fused),
    ElementwiseRule("MAXIMUM", _pair(lambda k, a, b: k.max(a, b)), takes(NUMBERS)),
    ElementwiseRule("MINIMUM", _pair(lambda k, a, b: k.min(a, b)), takes(NUMBERS)),
    ElementwiseRule("SQUARED_DIFFERENCE", _pair(_squared_difference), takes(NUMBERS)),
    ElementwiseRule("POW", _pair(_pow), takes(FLOATS)),
    ElementwiseRule("FLOOR_DIV", _pair(_floor_div), _accepts_floored),
    ElementwiseRule("FLOOR_MOD", _pair(_floor_mod), _accepts_floored),
    ElementwiseRule("ATAN2", _pair(lambda k, a, b: k.call("atan2", a, b)), takes(FLOATS)),
    ElementwiseRule("ADD_N", _add_n, _accepts_add_n),
    KernelRule("ADD_N", "in_turns", _add_n_in_turns, _accepts_add_n_in_turns),
)
