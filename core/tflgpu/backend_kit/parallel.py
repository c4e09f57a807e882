"""Work on several threads that has ended when the call returns, even where a signal ends it.

What runs are a driver's compilers. A thread that still compiles while its device is being closed
crashes the process, so an interrupted call waits for what has begun and starts nothing more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
_MAX_THREADS = 16


def in_parallel(name: str, function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
    """``function`` of each of the arguments, as `map` has them; threads get ``name``.

    Raises:
        What a call raises, the first in order; the others have ended then.
    """
    count = min(len(each) for each in arguments)
    if count <= 1:
        return list(map(function, *arguments))
    stopped = threading.Event()

    def call(*args: Any) -> T:
        if stopped.is_set():
            raise InterruptedError("the call was interrupted")
        return function(*args)

    def work() -> list[T]:
        threads = min(count, os.cpu_count() or 1, _MAX_THREADS)
        with ThreadPoolExecutor(threads, name) as pool:
            return list(pool.map(call, *arguments))

    # Signals are handled in the main thread. So that none comes between starting a thread and
    # knowing of it, the pool is a matter of a thread of its own.
    return aside(name, work, stopped.set)


def as_they_come(name: str, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """``function`` of each item, in order, on threads that get ``name``. A thread begins as soon as
    there is an item, while the next is still being made: programs are printed while a driver
    compiles those before them.

    Raises:
        What making an item or a call raises, the first in order; all calls have ended then.
    """
    stopped = threading.Event()

    def until_stopped() -> Iterator[S]:
        for item in items:
            if stopped.is_set():
                raise InterruptedError("the call was interrupted")
            yield item

    def work() -> list[T]:
        pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS), name)
        try:
            begun = [pool.submit(function, item) for item in until_stopped()]
            return [each.result() for each in begun]
        finally:
            pool.shutdown(cancel_futures=True)

    return aside(name, work, stopped.set)


def aside(name: str, action: Callable[[], T], stop: Callable[[], object] = bool) -> T:
    """Do something in a thread of its own, where no signals are handled, and wait for it. Where a
    signal ends the call, ``stop`` is called, and the thread waited for.

    Raises:
        What ``action`` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    begun, finished = threading.Lock(), threading.Event()

    def work() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001  (raised below, in the caller's thread)
            errors.append(error)
        finally:
            finished.set()

    try:
        threading.Thread(target=work, name=name).start()
        finished.wait()
    except BaseException:
        stop()
        if not begun.acquire(blocking=False):
            _wait_whatever_comes(finished)
        raise
    if errors:
        raise errors[0]
    return results[0]


def _wait_whatever_comes(event: threading.Event) -> None:
    """Wait through further signals; the first of them is on its way to the caller already."""
    while True:
        try:
            event.wait()
        except BaseException:  # noqa: BLE001, S112
            continue
        return
