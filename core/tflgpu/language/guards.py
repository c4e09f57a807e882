"""Operations that keep NaN, for APIs that may compute as if there were none.

There ``min`` and ``max`` give either operand where one is NaN, and a compiler may draw conclusions
of its own from comparisons. Each of these is written with the API's own operation and with
``isnan``, which printers ask of the bits, so that there is nothing to assume
(`tflgpu.language.definitions` says how such definitions are read). What it may conclude of
operations that cancel each other is `tflgpu.language.numbers`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from tflgpu.language import make
from tflgpu.language.definitions import Definition, Writer, define
from tflgpu.language.tree import Expr
from tflgpu.language.types import Type

#: Comparisons that are false for a NaN and whose outcome a compiler may take for an extreme's.
ORDERED = ("lt", "le", "gt", "ge")


def _kept(k: Writer, x: Expr, number: Expr) -> Expr:
    return k.select(k.is_nan(x), x, number)


def _ordered(op: str) -> Callable[..., Expr]:
    """A comparison that is false for a NaN, also after a compiler that ignores NaN rewrites it.

    A compiler that takes all floats for numbers makes of ``select(b, a, a < b)``, or of an ``if``
    that assigns, a minimum that passes over a NaN (NVIDIA's does), or asks the opposite and
    exchanges the two. Where the bits have been asked as well, both give the same.
    """
    return lambda k, a, b: make.binary(op, a, b) & ~k.is_nan(a) & ~k.is_nan(b)


def _extreme(op: str) -> Callable[..., Expr]:
    return lambda k, a, b: _kept(k, a, _kept(k, b, make.binary(op, a, b)))


def _limited(*ops: str) -> Callable[..., Expr]:
    """The same by limits that are no NaN, one after another."""

    def write(k: Writer, x: Expr, *limits: Expr) -> Expr:
        number = x
        for op, limit in zip(ops, limits, strict=True):
            number = make.binary(op, number, limit)
        return _kept(k, x, number)

    return write


def _sign(k: Writer, x: Expr) -> Expr:
    return _kept(k, x, k.call("sign", x))


def _of_positive(fn: str) -> Callable[..., Expr]:
    """A function that is NaN of what is below 0, of which these APIs promise nothing."""
    return lambda k, x: k.select(x < 0.0, k.const(math.nan, x.type), k.call(fn, x))


#: By name: what writes the operation, and its parameters.
GUARDS: dict[str, tuple[Callable[..., Expr], tuple[str, ...]]] = {
    **{op: (_ordered(op), ("a", "b")) for op in ORDERED},
    **{op: (_extreme(op), ("a", "b")) for op in ("min", "max")},
    "at_most": (_limited("min"), ("x", "limit")),
    "at_least": (_limited("max"), ("x", "limit")),
    "max_min": (_limited("max", "min"), ("x", "first", "second")),
    "min_max": (_limited("min", "max"), ("x", "first", "second")),
    "sign": (_sign, ("x",)),
    **{fn: (_of_positive(fn), ("x",)) for fn in ("log", "sqrt")},
}


@cache
def guard(name: str, kind: Type) -> Definition:
    """An operation of `GUARDS` on operands of a type."""
    return define(*GUARDS[name], kind)
