"""Copies between arrays of callers and those of a session: how they are made, into which memory,
and which of them need no second look.

NumPy lets go of the interpreter lock while it copies more than 500 elements. Where other threads
want it, getting it back takes longer than a small copy does, so these are made without. Large ones
gain: on an H200's host, reading EDSR's output of 25 MB took 1.9 to 2.4 ms by one thread and 1.4 to
1.5 ms by four; DeepLab's 5.5 MB took 0.38 ms by one and 0.43 to 0.53 ms by four, so only very large
arrays are split.

A fresh array of some megabytes costs more than filling it: the system hands out its pages one fault
at a time. A caller that reads an output, uses it and drops it gets the same memory again.

`set_tensor` and `get_tensor` look at an index, a type, a shape, and at where the tensor is now. For
a small model run many thousand times a second that is a good part of all that Python does. What was
found stays right as long as the session has the same arrays and nothing is bound.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import AllocationError
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.session import Session

#: Below this other threads cost more to wake than they save.
_SPLIT = 16 << 20
_MOST_THREADS = 4
#: From here on the interpreter lock is let go of.
_SMALL = 16 << 10
#: Smaller arrays come from the allocator's own lists without any faults.
_LARGE = 256 << 10
#: Results kept; a caller that holds on to more of them gets fresh memory.
_KEPT = 4


def copy(target: Array, source: Array, small: int = _SMALL) -> None:
    """``target[...] = source`` for arrays of one shape and type; of up to ``small`` bytes without
    letting go of the interpreter lock."""
    if source.nbytes < _SPLIT:
        if (
            0 < source.nbytes <= small
            and source.flags.c_contiguous
            and target.flags.c_contiguous
            and source.dtype is target.dtype
            and source.dtype.kind in "biuf"
        ):
            target.data.cast("B")[:] = source.data.cast("B")
            return
        np.copyto(target, source)
        return
    # Only asked for here: counting processors takes some microseconds.
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    contiguous = target.flags.c_contiguous and source.flags.c_contiguous
    same = target.dtype == source.dtype and target.shape == source.shape
    if threads < 2 or not (contiguous and same):
        np.copyto(target, source)
        return
    to, given = target.reshape(-1), source.reshape(-1)
    step = -(-to.size // threads)
    parts = [slice(i, i + step) for i in range(0, to.size, step)]
    others = [_pool().submit(np.copyto, to[part], given[part]) for part in parts[1:]]
    np.copyto(to[parts[0]], given[parts[0]])
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS - 1, "tflgpu-copy")


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


class TensorCache:
    """Tensors of one subgraph that were set or read before: the next time asks little. Anything
    that was not has False or None here, and is looked at."""

    def __init__(self, pool: ResultPool) -> None:
        self._pool = pool
        self._arrays: Mapping[int, Array] = {}
        self._inputs: dict[int, Array] = {}
        self._outputs: set[int] = set()

    def put(self, session: Session, index: Any, value: Any) -> bool:
        """Copy a value into an input that was set before; False where that has to be looked at."""
        if type(value) is not np.ndarray or not self._holds(session, index):
            return False
        target = self._inputs.get(index)
        if target is None or value.shape != target.shape or value.dtype != target.dtype:
            return False
        copy(target, value)
        return True

    def copied(self, session: Session, index: Any) -> Array | None:
        """An output that was read before, for the caller; None where that has to be looked at."""
        if self._holds(session, index) and session.complete and index in self._outputs:
            return self._pool.copied(self._arrays[index])
        return None

    def learn_input(self, session: Session, index: int, target: Array, source: Array) -> None:
        """That a value was copied into an input, which is not bound to anything."""
        if source.dtype == target.dtype and index not in session.kept:
            self._turn_to(session)
            self._inputs[index] = target

    def learn_output(self, session: Session, index: int) -> None:
        """That an output was copied, which is neither bound nor lent."""
        if session.arrays.get(index) is not None and index not in session.kept:
            self._turn_to(session)
            self._outputs.add(index)

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

    def _holds(self, session: Session, index: Any) -> bool:
        # Another number that equals an index (True, 1.0) is told what it is.
        return type(index) is int and session.arrays is self._arrays and not session.inherited
