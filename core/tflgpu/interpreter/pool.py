"""Memory of large results, used again once nobody holds them.

A fresh array of some megabytes costs more than filling it: the system hands out its pages one
fault at a time. A caller that reads an output, uses it and drops it gets the same memory again.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import AllocationError
from tflgpu.interpreter.copy import copy
from tflgpu.ir.dtypes import Array

#: Smaller arrays come from the allocator's own lists without any faults.
_LARGE = 256 << 10
#: Results kept; a caller that holds on to more of them gets fresh memory.
_KEPT = 4


class ResultPool:
    """Hands out uninitialised arrays; takes back what has no holder left, by itself."""

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self._free = _holders([np.empty(1, np.uint8)], 0)

    def copied(self, source: Array) -> Array:
        """A copy, in memory that no one else holds.

        Raises:
            AllocationError: there is no memory for it.
        """
        made = self.empty(source.shape, source.dtype)
        copy(made, source)
        return made

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array that no one else holds.

        Raises:
            AllocationError: there is no memory for it.
        """
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < _LARGE or kind.hasobject:
            return np.empty(shape, kind)
        # Without the interpreter lock a count of holders says nothing.
        locked: Any = getattr(sys, "_is_gil_enabled", lambda: True)
        if not locked():
            return np.empty(shape, kind)
        for i in range(len(self._blocks)):
            if self._blocks[i].nbytes == nbytes and _holders(self._blocks, i) == self._free:
                return self._blocks[i].view(kind).reshape(shape)
        try:
            made = np.empty(nbytes, np.uint8)
        except MemoryError as error:
            raise AllocationError(
                f"not enough memory for a copy of a result of {nbytes} bytes; let go of others, or "
                "read it by tensor(), which copies nothing"
            ) from error
        if len(self._blocks) >= _KEPT:
            self._blocks.pop(0)
        self._blocks.append(made)
        return made.view(kind).reshape(shape)


def _holders(blocks: list[Array], index: int) -> int:
    # Every view of a block, however derived, has the block itself as its base.
    return sys.getrefcount(blocks[index])
