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

#: Not negative where both operands are not; sums and products are taken not to overflow, as an
#: index that did would be wrong anyway.
_KEEPS = frozenset({"add", "mul", "div", "rem", "shr", "or", "xor"})


def not_negative(kernel: Kernel) -> frozenset[int]:
    """The ids of the i32 expressions that are surely at least 0."""
    names: set[str] = set()
    found: set[int] = set()
    for stmt in statements(kernel.body):
        for expr in walk(stmt).order:
            if expr.type.scalar is Scalar.I32 and _holds(expr, found, names):
                found.add(id(expr))
        if isinstance(stmt, (Let, For)):
            ident, value = (
                (stmt.ident, stmt.value)
                if isinstance(stmt, Let)
                else (stmt.index.ident, stmt.start)
            )
            names.discard(ident)  # another block may have used the name
            if id(value) in found:
                names.add(ident)
    return frozenset(found)


def _holds(expr: Expr, found: set[int], names: set[str]) -> bool:
    if isinstance(expr, Const):
        return expr.value >= 0
    if isinstance(expr, Builtin):
        return True
    if isinstance(expr, Name):
        return not expr.mutable and expr.ident in names
    if isinstance(expr, Binary):
        a, b = id(expr.a) in found, id(expr.b) in found
        if expr.op in ("max", "and"):
            return a or b
        return a and b and expr.op in (*_KEEPS, "min")
    if isinstance(expr, Select):
        return id(expr.a) in found and id(expr.b) in found
    if isinstance(expr, (Splat, Lane)):
        return id(expr.x) in found
    if isinstance(expr, Vec):
        return all(id(part) in found for part in expr.parts)
    return isinstance(expr, Cast) and expr.x.type.scalar is Scalar.BOOL
