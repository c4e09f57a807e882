"""Copies between arrays of callers and those of a session: how they are made, into which memory,
and which of them need no second look.

NumPy lets go of the interpreter lock while it copies more than 500 elements. Where other threads
want it, getting it back takes longer than a small copy does, so these are made without. Large ones
are made by several threads (`tflgpu.backend_kit.split_copy`).

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
#: From here on the interpreter lock is let go of; and elements of which NumPy's own copy keeps it.
_SMALL, _TINY = 16 << 10, 500
#: Up to here a copy more takes less than asking an array for its bytes in place.
_SHORT = 8 << 10
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
    from tflgpu.backend_kit.split_copy import split_copy  # few models have such tensors

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

    __slots__ = ("array", "bytes", "dtype", "is_short", "is_tiny", "shape")

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        small = 0 < array.nbytes <= _SMALL and array.flags.c_contiguous
        self.bytes = array.data.cast("B") if small and array.dtype.kind in "biuf" else None
        self.is_tiny = self.bytes is not None and array.size <= _TINY
        self.is_short = array.nbytes <= _SHORT


class TensorCache:
    """Tensors of one subgraph that were set or read before: the next time asks little. Anything
    that was not has False or None here, and is looked at.

    Attributes:
        session: Whose tensors they are, where nothing lies between it and its caller
            (`OpenedSubgraph.shortcut`).
        edition: How often inputs or state were changed by way of the interpreter.
        inputs, outputs: By tensor.
    """

    def __init__(self, pool: ResultPool) -> None:
        self.session: Session | None = None
        self.edition = 0
        self._pool = pool
        self._arrays: Mapping[int, Array] = {}
        self.inputs: dict[int, _Known] = {}
        self.outputs: dict[int, _Known] = {}

    def put(self, index: Any, value: Any, is_alone: bool) -> bool:
        """Copy a value into an input; False where that has to be looked at, or where the caller
        would have to keep other threads out: the copy lets go of the interpreter lock."""
        # Another number that equals an index (True, 1.0) is told what it is.
        known = self.inputs.get(index) if type(index) is int else None
        if (
            known is None
            or not (known.bytes or is_alone)
            or type(value) is not np.ndarray
            or value.shape != known.shape
        ):
            return False
        if value.dtype is not known.dtype and value.dtype != known.dtype:
            return False
        if known.is_tiny:
            known.array[...] = value
        elif known.bytes is not None and known.is_short:
            known.bytes[:] = value.tobytes()
        else:
            copy(known.array, value)
        self.edition += 1
        return True

    def copied(self, index: Any, is_alone: bool) -> Array | None:
        """An output for the caller; None where `put` has False."""
        known = self.outputs.get(index) if type(index) is int else None
        if known is None or not (known.bytes or is_alone):
            return None
        # A run may leave results in other arrays.
        if known.array is not self._arrays.get(index):
            return None
        if known.is_tiny:
            made: Array = known.array.copy()
        elif known.bytes is None:
            made = self._pool.copied(known.array)
        else:
            made = np.empty(known.shape, known.dtype)
            made.data.cast("B")[:] = known.bytes
        return made

    def is_of(self, session: Session) -> bool:
        """Whether what is known is true of a session."""
        return session.arrays is self._arrays and not session.inherited

    def learn(self, session: Session, index: int, array: Array, *, is_input: bool) -> None:
        """That an input was set, or an output copied, which is neither bound nor lent."""
        if index not in session.kept:
            self.turn_to(session)
            (self.inputs if is_input else self.outputs)[index] = _Known(array)

    def forget(self) -> None:
        """Something changed that has a say."""
        self._arrays, self.session = {}, None
        self.inputs.clear()
        self.outputs.clear()

    def turn_to(self, session: Session) -> None:
        """Know nothing of other sessions."""
        if session.arrays is not self._arrays:
            self.forget()
            self._arrays = session.arrays
