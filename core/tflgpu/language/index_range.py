"""Which elements of a buffer each workgroup of a launch may write, as far as its indices tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tflgpu.language.tree import (
    Binary,
    Builtin,
    Const,
    Expr,
    For,
    If,
    Kernel,
    KernelBuffer,
    Let,
    Name,
    Select,
    Store,
)
from tflgpu.language.types import BOOL, I32, Size3
from tflgpu.language.walk import children, postorder, statements

#: By workgroup: a number that none is less than, and one that none is greater than.
Range = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
#: What is not known is between these.
_MOST = 2**31
#: Where nothing is written.
BEYOND = 2**40


def written(kernel: Kernel, groups: Size3, buffer: KernelBuffer) -> list[Range]:
    """Of each store to a buffer, the lanes that each workgroup may write: x first, then y, then z.
    Where it surely does not get to the store, the least one is beyond all."""
    ranges, found = _Ranges(kernel, groups), []
    everywhere = np.ones(math.prod(groups), np.bool_)
    waiting = [(stmt, everywhere) for stmt in kernel.body]
    while waiting:
        stmt, there = waiting.pop()
        if isinstance(stmt, If):
            surely, perhaps = ranges.of(stmt.cond)
            waiting += [(each, there & (perhaps > 0)) for each in stmt.then]
            waiting += [(each, there & (surely < 1)) for each in stmt.orelse]
        elif isinstance(stmt, For):
            waiting += [(each, there) for each in stmt.body]
        elif isinstance(stmt, Store) and stmt.buffer.name == buffer.name:
            least, most = ranges.of(stmt.index)
            width = 1 if stmt.scalar else buffer.width
            found.append((np.where(there, least * width, BEYOND), most * width + (width - 1)))
    return found


class _Ranges:
    """Ranges of a kernel's whole numbers."""

    def __init__(self, kernel: Kernel, groups: Size3) -> None:
        number, (x, y, _) = np.arange(math.prod(groups)), groups
        self._groups = number % x, number // x % y, number // (x * y)
        self._workgroup = kernel.workgroup
        self._none = np.zeros(len(number), np.int64)
        self._unknown = self._none - _MOST, self._none + _MOST
        named = [s for s in statements(kernel.body) if isinstance(s, (Let, For))]
        often = Counter(s.declares[0] for s in named)
        self._named = {s.declares[0]: s for s in named if often[s.declares[0]] == 1}
        self._names: dict[str, Range] = {}

    def of(self, expr: Expr) -> Range:
        """That of an expression."""
        found: dict[int, Range] = {}
        for each in postorder([expr]):
            parts = [found[id(part)] for part in children(each)]
            is_whole = each.type in (I32, BOOL)
            least, most = self._of(each, parts) if is_whole else self._unknown
            found[id(each)] = np.clip(least, -_MOST, _MOST), np.clip(most, -_MOST, _MOST)
        return found[id(expr)]

    def _of(self, expr: Expr, parts: Sequence[Range]) -> Range:
        if isinstance(expr, Const):
            return self._none + int(expr.value), self._none + int(expr.value)
        if isinstance(expr, Builtin) and expr.kind in ("group_id", "local_id", "global_id"):
            size, group = self._workgroup[expr.axis], self._groups[expr.axis]
            if expr.kind == "group_id":
                return group, group
            least = group * size if expr.kind == "global_id" else self._none
            return least, least + (size - 1)
        if isinstance(expr, Name) and not expr.mutable and expr.ident in self._named:
            return self._name(expr.ident)
        if isinstance(expr, Select):
            _, a, b = parts
            return np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
        if isinstance(expr, Binary) and expr.op in _RULES:
            return _RULES[expr.op](*parts)
        return self._unknown

    def _name(self, ident: str) -> Range:
        if ident not in self._names:
            stmt = self._named[ident]
            if isinstance(stmt, For):
                start, stop = self.of(stmt.start), self.of(stmt.stop)
                self._names[ident] = start[0], np.maximum(start[0], stop[1] - 1)
            else:
                self._names[ident] = self.of(stmt.value)
        return self._names[ident]


def _ends(a: Range, b: Range, of: Callable[..., npt.NDArray[np.int64]]) -> Range:
    """Of an operation that is monotone in each operand."""
    found = [of(x, y) for x in a for y in b]
    return np.minimum.reduce(found), np.maximum.reduce(found)


def _divided(a: Range, b: Range) -> Range:
    """Quotients, of what is not negative by what is positive."""
    known = (a[0] >= 0) & (b[0] > 0)
    by, at_most = np.maximum(b[1], 1), np.maximum(b[0], 1)
    return np.where(known, a[0] // by, -_MOST), np.where(known, a[1] // at_most, _MOST)


def _remainders(a: Range, b: Range) -> Range:
    by = np.maximum(b[0], 1)
    known = (a[0] >= 0) & (b[0] > 0) & (b[0] == b[1])
    within = a[0] // by == a[1] // by
    least, most = np.where(within, a[0] % by, 0), np.where(within, a[1] % by, by - 1)
    return np.where(known, least, -_MOST), np.where(known, most, _MOST)


_RULES: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: _ends(a, b, np.multiply),
    "min": lambda a, b: _ends(a, b, np.minimum),
    "max": lambda a, b: _ends(a, b, np.maximum),
    # Conditions are 0 or 1.
    "land": lambda a, b: _ends(a, b, np.minimum),
    "lor": lambda a, b: _ends(a, b, np.maximum),
    "lt": lambda a, b: ((a[1] < b[0]) * 1, (a[0] < b[1]) * 1),
    "le": lambda a, b: ((a[1] <= b[0]) * 1, (a[0] <= b[1]) * 1),
    "gt": lambda a, b: ((a[0] > b[1]) * 1, (a[1] > b[0]) * 1),
    "ge": lambda a, b: ((a[0] >= b[1]) * 1, (a[1] >= b[0]) * 1),
    "div": _divided,
    "rem": _remainders,
}
