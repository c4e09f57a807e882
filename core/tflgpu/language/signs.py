"""Which whole numbers of a kernel are surely not negative.

For printers. Index arithmetic is made of ids, sizes and loop counters, and takes remainders all the
time. Vulkan leaves SPIR-V's OpSRem undefined for negative operands (appendix "Vulkan Environment
for SPIR-V"), which NVIDIA's driver makes use of, and wgpu translates the ``%`` of i32 to it. So a
printer writes only those remainders otherwise that may meet a negative number.
"""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.overflow import made_of_data
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

#: The largest number that there is.
_MOST = 2**31 - 1
#: What an id counts for: nothing beside data that have a limit, since an index made of both is
#: taken not to overflow; and too much beside data that may be as large as any.
_ID = 2
#: Of two numbers that are not negative, the most that comes out; it is not negative either, unless
#: that is beyond `_MOST`.
_KEEPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a,
    "rem": lambda a, b: min(a, max(b - 1, 0)),
    "shr": lambda a, b: a,
    "or": lambda a, b: (1 << max(a, b).bit_length()) - 1,
    "xor": lambda a, b: (1 << max(a, b).bit_length()) - 1,
}


def not_negative(kernel: Kernel) -> frozenset[int]:
    """The ids of the i32 expressions that are surely at least 0.

    Sums and products of indices are taken not to overflow, as one that did would be wrong anyway.
    Those of data wrap around, so they count only where their operands are known to be small enough.
    """
    return frozenset(_Signs(kernel).found)


class _Signs:
    """``found`` are ids of expressions that are not negative; ``most`` has limits of any."""

    def __init__(self, kernel: Kernel) -> None:
        self.found: set[int] = set()
        self._most: dict[int, int] = {}
        self._names: set[str] = set()
        self._limits: dict[str, int] = {}
        self._data = made_of_data(kernel)
        for stmt in statements(kernel.body):
            for expr in walk(stmt).order:
                if expr.type.scalar is Scalar.I32:
                    holds, most = self._look_at(expr)
                    if holds and (most <= _MOST or id(expr) not in self._data):
                        self.found.add(id(expr))
                    self._most[id(expr)] = min(most, _MOST)
            if isinstance(stmt, Let):
                self._name(stmt.ident, stmt.value, self._most.get(id(stmt.value), _MOST))
            elif isinstance(stmt, For):
                last = max(self._most.get(id(stmt.stop), _MOST) - 1, 0)
                self._name(stmt.index.ident, stmt.start, last)

    def _name(self, ident: str, value: Expr, most: int) -> None:
        self._names.discard(ident)  # another block may have used the name
        self._limits[ident] = most
        if id(value) in self.found:
            self._names.add(ident)

    def _look_at(self, expr: Expr) -> tuple[bool, int]:
        """Whether an expression is not negative, if it does not overflow, and the most that it
        is."""
        if isinstance(expr, Const):
            return expr.value >= 0, int(expr.value)
        if isinstance(expr, Builtin):
            return True, _ID
        if isinstance(expr, Name):
            if expr.mutable:
                return False, _MOST
            return expr.ident in self._names, self._limits.get(expr.ident, _MOST)
        if isinstance(expr, Binary):
            return self._binary(expr)
        if isinstance(expr, Select):
            return self._all(expr.if_true, expr.if_false)
        if isinstance(expr, (Splat, Lane)):
            return self._all(expr.operand)
        if isinstance(expr, Vec):
            return self._all(*expr.parts)
        return isinstance(expr, Cast) and expr.operand.type.scalar is Scalar.BOOL, _MOST

    def _all(self, *parts: Expr) -> tuple[bool, int]:
        holds = all(id(part) in self.found for part in parts)
        return holds, max(self._most.get(id(part), _MOST) for part in parts)

    def _binary(self, expr: Binary) -> tuple[bool, int]:
        operands = (expr.left, expr.right)
        signs = [id(part) in self.found for part in operands]
        most = [self._most.get(id(part), _MOST) for part in operands]
        if expr.op == "min":
            return all(signs), min(most)
        if expr.op == "max":
            return any(signs), max(most)
        if expr.op == "and":
            return any(signs), min(
                (m for m, s in zip(most, signs, strict=True) if s), default=_MOST
            )
        if expr.op in _KEEPS and all(signs):
            return True, _KEEPS[expr.op](*most)
        return False, _MOST
