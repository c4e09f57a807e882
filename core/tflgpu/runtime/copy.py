"""Copies of large host arrays, by several threads.

One core moves some 15 GB/s from memory that a device has written; outputs of megabytes take
longer to copy than to compute. NumPy lets go of the interpreter lock while it copies.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from tflgpu.ir.dtypes import Array

#: Below this a second thread is not worth its wake-up.
_LARGE = 2 << 20
_MOST_THREADS = 4


def copy(target: Array, source: Array) -> None:
    """``target[...] = source`` for arrays of one shape and type."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    contiguous = target.flags.c_contiguous and source.flags.c_contiguous
    same = target.dtype == source.dtype and target.shape == source.shape
    if source.nbytes < _LARGE or threads < 2 or not (contiguous and same):
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
