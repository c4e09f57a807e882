"""The invocations that run a block together, and what their names stand for.

A value is an array over the frame's invocations, [n] or [n, lanes]; a first dimension of 1
stands for "the same in all". Where control flow splits, the invocations that take a branch get
a frame of their own, so that nothing is ever computed for an invocation that is not there.
Values move between a frame and its parent only when they are used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array

Index = npt.NDArray[np.int64]


class Frame:
    """Some invocations of a batch, their place in the parent frame, and their names."""

    def __init__(self, count: int, parent: Frame | None = None, where: Index | None = None) -> None:
        self.count = count
        self._parent = parent
        self._where = where
        self._values: dict[str, Array] = {}
        self._declared: set[str] = set()
        self._changed: set[str] = set()

    def part(self, where: Index) -> Frame:
        """The frame of the invocations at the given places of this one."""
        return Frame(len(where), self, where)

    def get(self, ident: str) -> Array:
        """What a name stands for."""
        found = self._values.get(ident)
        if found is None:
            if self._parent is None or self._where is None:
                raise KernelError(f"{ident} has no value")
            found = self._parent.get(ident)
            if len(found) > 1:
                found = found[self._where]
            self._values[ident] = found
        return found

    def full(self, ident: str) -> Array:
        """The same with one entry for each invocation."""
        return spread(self.get(ident), self.count)

    def declare(self, ident: str, value: Array) -> None:
        """A name of this frame's block."""
        self._declared.add(ident)
        self._values[ident] = value

    def assign(self, ident: str, value: Array) -> None:
        """A new value for a name of this block or an outer one."""
        if ident not in self._declared:
            self._changed.add(ident)
        self._values[ident] = value

    def leave(self) -> None:
        """Hand assigned outer names back to the parent."""
        if self._parent is None or self._where is None:
            return
        for ident in self._changed:
            old, new = self._parent.get(ident), self._values[ident]
            merged = spread(old, self._parent.count).copy()
            merged[self._where] = new
            self._parent.assign(ident, merged)


def spread(value: Array, count: int) -> Array:
    """A value with one entry for each of ``count`` invocations."""
    return value if len(value) == count else np.broadcast_to(value, (count, *value.shape[1:]))
