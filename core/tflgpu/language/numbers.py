"""What can be told of a float's value from its expression: for printers, where a compiler should
not draw conclusions of its own."""

from __future__ import annotations

import enum
import math

from tflgpu.language.expressions import Binary, Cast, Const, Expr, Name, Splat


def never_nan(expr: Expr) -> bool:
    """Whether no lane is NaN, as far as the expression's own outermost nodes tell: it is a
    literal, made of whole numbers, or an extreme of such."""
    if isinstance(expr, Const):
        return not math.isnan(expr.value)
    if isinstance(expr, Cast):
        return not expr.operand.type.is_float
    if isinstance(expr, Splat):
        return never_nan(expr.operand)
    if isinstance(expr, Binary) and expr.op in ("min", "max"):
        return never_nan(expr.left) and never_nan(expr.right)
    return False


def is_same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are one object, one variable, or vectors of the same one."""
    if isinstance(a, Splat) and isinstance(b, Splat):
        return is_same(a.operand, b.operand)
    if isinstance(a, Name) and isinstance(b, Name):
        return a.ident == b.ident
    return a is b


def extreme_of(expr: Binary) -> tuple[str, Expr, bool]:
    """How a ``min`` or ``max`` of floats may be written where NaN counts: by its own name, or,
    where one operand is no NaN, as the other one ``at_most`` or ``at_least`` that; which operand is
    asked about NaN first; and whether that is the second one."""
    is_turned = never_nan(expr.left) and not never_nan(expr.right)
    first, other = (expr.right, expr.left) if is_turned else (expr.left, expr.right)
    limit = "at_most" if expr.op == "min" else "at_least"
    return (limit if never_nan(other) else expr.op), first, is_turned


class Foregone(enum.Enum):
    """A result that is one number, unless it is NaN."""

    ZERO_OF_FINITE = "a * 0 and a - a"
    ZERO_OF_NONZERO = "0 / a"
    ONE_OF_FINITE_NONZERO = "a / a"


def foregone(expr: Binary) -> tuple[Foregone, Expr] | None:
    """What decides whether a result is NaN or the one number that it can be; None where it can
    be several.

    Compilers for graphics (Mesa's llvmpipe is one) take such a result for the number.
    """
    if not expr.type.is_float:
        return None
    if expr.op == "mul" and (_is_zero(expr.left) or _is_zero(expr.right)):
        return Foregone.ZERO_OF_FINITE, expr.right if _is_zero(expr.left) else expr.left
    if expr.op == "sub" and is_same(expr.left, expr.right):
        return Foregone.ZERO_OF_FINITE, expr.left
    if expr.op == "div" and _is_zero(expr.left):
        return Foregone.ZERO_OF_NONZERO, expr.right
    if expr.op == "div" and is_same(expr.left, expr.right):
        return Foregone.ONE_OF_FINITE_NONZERO, expr.left
    return None


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0
