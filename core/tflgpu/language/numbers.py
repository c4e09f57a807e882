"""What can be told of a float's value from its expression: for printers, where a compiler should
not draw conclusions of its own."""

from __future__ import annotations

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


#: Functions that a compiler may take together with what comes before or behind: ``log(exp(x))`` is
#: ``x`` to it, ``sqrt(x) * sqrt(x)`` too, and ``exp(x) * exp(y)`` is ``exp(x + y)``.
UNDONE = frozenset({"exp", "log", "sqrt", "rsqrt", "pow"})


def hidden_sides(expr: Binary, *, keeps_nan: bool = False) -> tuple[bool, bool]:
    """Which operands of a sum or product of floats a printer hides from a compiler that computes
    as if there were no NaN, no infinity and no rounding.

    To such a compiler ``(x + y) - x`` is ``y``, ``(x * y) / y`` is ``x``, and ``x - x`` and ``x *
    0`` are 0, whatever ``x`` is. It has nothing to conclude this from where it does not know what
    is subtracted, what divides, and which factor is no positive number; nor what is negated, which
    is not asked here. What several literals make of each other is left to it: ``x + 1e9 - 1e9``
    may be ``x``. One that keeps NaN (``keeps_nan``) may take ``x * 0`` for 0 all the same; Mesa's
    llvmpipe does.
    """
    is_factor = expr.op in ("mul", "div")
    left, right = _literal(expr.left), _literal(expr.right)
    if keeps_nan:
        return is_factor and left == 0, expr.op == "mul" and right == 0
    if right is None:
        return is_factor and _is_not_positive(left), expr.op in ("sub", "div")
    return False, is_factor and _is_not_positive(right)


def _literal(expr: Expr) -> float | None:
    if isinstance(expr, Splat):
        expr = expr.operand
    return float(expr.value) if isinstance(expr, Const) else None


def _is_not_positive(literal: float | None) -> bool:
    return literal is not None and not literal > 0
