"""Which whole numbers of a kernel are made of data, so that arithmetic on them may overflow.

For printers of C's descendants. The kernel language's i32 wraps around, and in C signed overflow is
undefined: a compiler makes "true" of ``x + 1 > x``, and ``x`` of ``x * 2 / 2`` (PoCL's does).
Unsigned numbers wrap in C too. Indices, which are made of ids, sizes and loop counters, stay
signed: one that overflowed would be wrong anyway, and compilers address memory better when they may
assume that none does.
"""

from __future__ import annotations

from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.language.tree import (
    Bitcast,
    Builtin,
    Cast,
    Const,
    Expr,
    Kernel,
    Let,
    Load,
    Name,
    Select,
    SharedLoad,
)
from tflgpu.language.types import Scalar
from tflgpu.language.walk import children, statements, walk

_SOURCES = (Load, SharedLoad, Bitcast)
_CONVERSIONS = frozenset({Cast, Bitcast})


def made_of_data(kernel: Kernel) -> frozenset[int]:
    """The ids of the i32 expressions that are not made of indices alone."""
    if not _has_data(kernel):
        return frozenset()
    names: set[str] = set()
    found: set[int] = set()
    for stmt in statements(kernel.body):
        for expr in walk(stmt).order:
            if expr.type.scalar is Scalar.I32 and _is_data(expr, found, names):
                found.add(id(expr))
        if isinstance(stmt, Let):
            names.discard(stmt.ident)  # another block may have used the name
            if id(stmt.value) in found:
                names.add(stmt.ident)
        elif isinstance(stmt, SubgroupShuffleXor):
            names.add(stmt.ident)
    return frozenset(found)


def _has_data(kernel: Kernel) -> bool:
    """Whether there may be any: most kernels of floats have none, and this is asked quickly."""
    memory = [b.scalar for b in kernel.buffers] + [a.type.scalar for a in kernel.shared]
    return any(not scalar.is_float for scalar in memory) or any(
        type(expr) in _CONVERSIONS and expr.type.scalar is Scalar.I32
        for stmt in statements(kernel.body)
        for expr in walk(stmt).order
    )


def _is_data(expr: Expr, found: set[int], names: set[str]) -> bool:
    if isinstance(expr, (Const, Builtin)):
        return False
    if isinstance(expr, Name):
        # What a variable has may have been assigned to it further down, in a loop.
        return expr.mutable or expr.ident in names
    if isinstance(expr, Cast):
        return expr.operand.type.scalar is not Scalar.BOOL
    if isinstance(expr, Select):
        return id(expr.if_true) in found or id(expr.if_false) in found
    return isinstance(expr, _SOURCES) or any(id(part) in found for part in children(expr))
