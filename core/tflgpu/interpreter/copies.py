"""Copies between arrays of callers and those of a session: how they are made, into which memory,
and which of them need no second look.

NumPy lets go of the interpreter lock while it copies more than 500 elements. Where other threads
want it, getting it back takes longer than a small copy does, so these are made without. Large ones
are made by several threads (`tflgpu.interpreter.split_copy`).

A fresh array of some megabytes costs more than filling it: the system hands out its pages one fault
at a time. A caller that reads an output, uses it and drops it gets the same memory again.

`set_tensor` and `get_tensor` look at an index, a type, a shape, and at where the tensor is now. For
a small model run many thousand times a second that is a good part of all that Python does. What was
found stays right as long as the session has the same arrays and nothing is bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import AllocationError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.session import Session

#: From here on several threads may pay.
_SPLIT = 2 << 20
#: From here on the interpreter lock is let go of.
_SMALL = 16 << 10
#: Smaller arrays come from the allocator's own lists without any faults.
_LARGE = 256 << 10
#: Results kept; a caller that holds on to more of them gets fresh memory.
_KEPT = 4


def copy(target: Array, source: Array, small: int = _SMALL) -> None:
    """``target[...] = source`` for arrays of one shape and type; of up to ``small`` bytes without
    letting go of the interpreter lock."""
    nbytes = source.nbytes
    if small < nbytes < _SPLIT or not nbytes:
        np.copyto(target, source)
        return
    plain = source.flags.c_contiguous and target.flags.c_contiguous
    plain = plain and source.dtype == target.dtype and source.shape == target.shape
    if plain and nbytes <= small and source.dtype.kind in "biuf":
        target.data.cast("B")[:] = source.data.cast("B")
        return
    from tflgpu.interpreter.split_copy import split_copy  # few models have such tensors

    if not (plain and split_copy(target, source)):
        np.copyto(target, source)


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


class _Known:
    """An array of a session, and the bytes of one that is copied without letting go of the
    interpreter lock."""

    __slots__ = ("array", "bytes", "dtype", "shape")

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        small = 0 < array.nbytes <= _SMALL and array.flags.c_contiguous
        self.bytes = array.data.cast("B") if small and array.dtype.kind in "biuf" else None


class TensorCache:
    """Tensors of one subgraph that were set or read before: the next time asks little. Anything
    that was not has False or None here, and is looked at."""

    def __init__(self, pool: ResultPool) -> None:
        self._pool = pool
        self._arrays: Mapping[int, Array] = {}
        self._inputs: dict[int, _Known] = {}
        self._outputs: dict[int, _Known] = {}

    def put(self, session: Session, index: Any, value: Any) -> bool:
        """Copy a value into an input that was set before; False where that has to be looked at."""
        if type(index) is not int or session.arrays is not self._arrays or session.inherited:
            return False
        known = self._inputs.get(index)
        if known is None or type(value) is not np.ndarray:
            return False
        if value.shape != known.shape or value.dtype != known.dtype:
            return False
        if known.bytes is not None and value.flags.c_contiguous and value.dtype is known.dtype:
            known.bytes[:] = value.data.cast("B")
        else:
            copy(known.array, value)
        return True

    def copied(self, session: Session, index: Any) -> Array | None:
        """An output that was read before, for the caller; None where that has to be looked at."""
        # Another number that equals an index (True, 1.0) is told what it is.
        if type(index) is not int or session.arrays is not self._arrays or session.inherited:
            return None
        known = self._outputs.get(index)
        # A run may leave results in other arrays.
        if known is None or known.array is not self._arrays[index] or not session.complete:
            return None
        if known.bytes is None:
            return self._pool.copied(known.array)
        made = np.empty(known.shape, known.dtype)
        made.data.cast("B")[:] = known.bytes
        return made

    def learn_input(self, session: Session, index: int, target: Array, source: Array) -> None:
        """That a value was copied into an input, which is not bound to anything."""
        if source.dtype == target.dtype and index not in session.kept:
            self._turn_to(session)
            self._inputs[index] = _Known(target)

    def learn_output(self, session: Session, index: int) -> None:
        """That an output was copied, which is neither bound nor lent."""
        array = session.arrays.get(index)
        if array is not None and index not in session.kept:
            self._turn_to(session)
            self._outputs[index] = _Known(array)

    def forget(self) -> None:
        """Something changed that has a say."""
        self._arrays = {}
        self._inputs.clear()
        self._outputs.clear()

    # Inside

    def _turn_to(self, session: Session) -> None:
        if session.arrays is not self._arrays:
            self.forget()
            self._arrays = session.arrays
