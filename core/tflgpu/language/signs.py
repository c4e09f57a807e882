"""Which whole numbers of a kernel are surely not negative.

For printers. Index arithmetic is made of ids, sizes and loop counters, and takes remainders all the
time. Vulkan leaves SPIR-V's OpSRem undefined for negative operands (appendix "Vulkan Environment for
SPIR-V"), which NVIDIA's driver makes use of, and wgpu translates the ``%`` of i32 to it. So a printer
writes only those remainders otherwise that may meet a negative number.
"""

from __future__ import annotations

from tflgpu.language.tree import (
    Binary,
    Builtin,
    Cast,
    Const,
    Expr,
    For,
    Kernel,
    Lane,
    Let,
    Name,
    Select,
    Splat,
    Vec,
)
from tflgpu.language.types import Scalar
from tflgpu.language.walk import statements, walk

#: Not negative where both operands are not.
_KEEPS = frozenset({"add", "mul", "div", "rem", "shr", "or", "xor", "min", "max", "and"})
#: Overflow, and are negative then. Of ids and sizes they are taken not to, as an index that did would be
#: wrong anyway; of data they may.
_GROWS = frozenset({"add", "mul"})


def not_negative(kernel: Kernel) -> frozenset[int]:
    """The ids of the i32 expressions that are surely at least 0."""
    names: dict[str, bool] = {}
    found: dict[int, bool] = {}
    for stmt in statements(kernel.body):
        for expr in walk(stmt).order:
            if expr.type.scalar is Scalar.I32:
                wide = _is_wide(expr, found, names)
                if wide is not None:
                    found[id(expr)] = wide
        if isinstance(stmt, (Let, For)):
            ident, value = (
                (stmt.ident, stmt.value)
                if isinstance(stmt, Let)
                else (stmt.index.ident, stmt.start)
            )
            names.pop(ident, None)  # another block may have used the name
            if id(value) in found:
                names[ident] = found[id(value)]
    return frozenset(found)


def _is_wide(expr: Expr, found: dict[int, bool], names: dict[str, bool]) -> bool | None:
    """None where it may be negative. Else whether it may be any other number, being data: sums of such
    may be negative."""
    if isinstance(expr, Const):
        return False if expr.value >= 0 else None
    if isinstance(expr, Builtin):
        return False
    if isinstance(expr, Name):
        return None if expr.mutable else names.get(expr.ident)
    if isinstance(expr, Binary):
        return _is_wide_binary(expr.op, found.get(id(expr.a)), found.get(id(expr.b)))
    if isinstance(expr, Select):
        return _widest(expr.a, expr.b, found=found)
    if isinstance(expr, (Splat, Lane)):
        return found.get(id(expr.x))
    if isinstance(expr, Vec):
        return _widest(*expr.parts, found=found)
    return False if isinstance(expr, Cast) and expr.x.type.scalar is Scalar.BOOL else None


def _widest(*parts: Expr, found: dict[int, bool]) -> bool | None:
    wide = [found.get(id(part)) for part in parts]
    return None if None in wide else any(wide)


def _is_wide_binary(op: str, a: bool | None, b: bool | None) -> bool | None:
    if a is None or b is None:
        known = b if a is None else a
        if op == "max" and known is not None:
            return True
        return known if op == "and" else None
    if op not in _KEEPS or (op in _GROWS and (a or b)):
        return None
    return a and b if op in ("min", "and", "rem") else a or b
