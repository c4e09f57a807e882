"""Large copies by several threads.

A thread that is woken up for a part of a copy costs some 10 us, so it waits at a lock of its own
and not at a queue. One copy is split at a time: another that comes meanwhile is made by its own
thread.
"""

from __future__ import annotations

import os
import threading
from functools import cache

import numpy as np

from tflgpu.backend_kit.forks import call_in_child, free_in_child
from tflgpu.ir.dtypes import Array

#: Bytes for which one thread more pays: below two of them nothing is split. On an H200's host, into
#: memory of the device: 2 MB took 141 us by one thread and 82 by two, 6 MB 440 and 234 by four,
#: 26 MB 1,880 and 892 by six; into its own memory 26 MB took 2,193 and 541.
PART = 1 << 20
_MOST_THREADS = 6

_busy = free_in_child()
_helpers: list[_Helper] = []
call_in_child(_helpers.clear)


class _Helper:
    """A thread that copies what it is given."""

    def __init__(self) -> None:
        self._begun, self._done = threading.Lock(), threading.Lock()
        self._begun.acquire()
        self._done.acquire()
        self._work: tuple[Array, Array] | None = None
        threading.Thread(target=self._copy, name="tflgpu-copy", daemon=True).start()

    def begin(self, target: Array, source: Array) -> None:
        """Have it copy."""
        self._work = target, source
        self._begun.release()

    def finish(self) -> None:
        """Wait until it has."""
        self._done.acquire()

    def _copy(self) -> None:
        while True:
            self._begun.acquire()
            assert self._work is not None
            np.copyto(*self._work)
            self._work = None
            self._done.release()


def split_copy(target: Array, source: Array) -> bool:
    """Copy between contiguous arrays of one shape and type by several threads; False, with nothing
    done, where one is as fast."""
    threads = min(_MOST_THREADS, source.nbytes // PART, _processors() // 2)
    if threads < 2 or not _busy.acquire(blocking=False):
        return False
    try:
        while len(_helpers) < threads - 1:
            _helpers.append(_Helper())
        to, given = target.reshape(-1), source.reshape(-1)
        step = -(-to.size // threads)
        helpers = _helpers[: -(-to.size // step) - 1]
        for i, helper in enumerate(helpers, 1):
            part = slice(i * step, (i + 1) * step)
            helper.begin(to[part], given[part])
        np.copyto(to[:step], given[:step])
        for helper in helpers:
            helper.finish()
    except BaseException:
        _helpers.clear()  # a signal came: some are at it still
        raise
    finally:
        _busy.release()
    return True


@cache
def _processors() -> int:
    """Those that this process may use; counting them takes some microseconds."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
