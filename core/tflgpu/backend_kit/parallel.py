"""Work on several threads that has ended when the call returns, even where a signal ends it.

What runs are a driver's compilers. A thread that still compiles while its device is being closed
crashes the process, so an interrupted call waits for what has begun and starts nothing more.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sized
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import takewhile
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
_MAX_THREADS = 16


def threads(name: str) -> ThreadPoolExecutor:
    """As many threads as there are processors, within reason, for a driver's compilers."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS), name)


def in_parallel(name: str, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """``function`` of each item, in order, on threads that get ``name``. A thread begins as soon as
    there is an item, while the next is still being made: programs are printed while a driver
    compiles those before them.

    Raises:
        What making an item or a call raises, the first in order; all calls have ended then.
    """
    if isinstance(items, Sized) and len(items) <= 1:
        return list(map(function, items))
    stopped = threading.Event()

    def call(item: S) -> T:
        if stopped.is_set():
            raise InterruptedError("the call was interrupted")
        return function(item)

    def work() -> list[T]:
        pool = threads(name)
        try:
            going_on = takewhile(lambda _: not stopped.is_set(), items)
            begun = [pool.submit(call, item) for item in going_on]
            return [each.result() for each in begun]
        finally:
            pool.shutdown(cancel_futures=True)

    # Signals are handled in the main thread. So that none comes between starting a thread and
    # knowing of it, the pool is a matter of a thread of its own.
    return aside(name, work, stopped.set)


def aside(name: str, action: Callable[[], T], stop: Callable[[], object] = bool) -> T:
    """Do something in a thread of its own, where no signals are handled, and wait for it. Where a
    signal ends the call, ``stop`` is called, and the thread waited for.

    Raises:
        What ``action`` raises.
    """
    with ThreadPoolExecutor(1, name) as pool:
        found = pool.submit(action)
        try:
            return found.result()
        except BaseException:
            stop()
            while not found.done():
                # Through further signals; the first of them is on its way to the caller already.
                with contextlib.suppress(BaseException):
                    wait([found])
            raise
