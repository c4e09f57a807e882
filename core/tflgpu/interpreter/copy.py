"""Copies of host arrays: large ones by several threads, small ones without letting go of the
interpreter lock.

NumPy lets go of that lock while it copies more than 500 elements. Where other threads want it,
getting it back takes longer than a small copy does. Large ones gain: on an H200's host, reading
EDSR's output of 25 MB took 1.9 to 2.4 ms by one thread and 1.4 to 1.5 ms by four; DeepLab's 5.5 MB
took 0.38 ms by one and 0.43 to 0.53 ms by four, so only very large arrays are split.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from tflgpu.ir.dtypes import Array

#: Below this other threads cost more to wake than they save.
_LARGE = 16 << 20
_MOST_THREADS = 4
#: From here on the interpreter lock is let go of.
_SMALL = 16 << 10


def copy(target: Array, source: Array, small: int = _SMALL) -> None:
    """``target[...] = source`` for arrays of one shape and type; of up to ``small`` bytes without
    letting go of the interpreter lock."""
    if source.nbytes < _LARGE:
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
