"""Many requests at a time: runs in flight by one thread, and threads that call."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.invocation import Invocation
from tflgpu.ir.dtypes import Array

#: Seconds within which all threads have begun.
_LONG = 60.0

#: What a thread does: it is given its number, and makes calls for as long as a function says so of
#: their count. Returns the seconds that each call took.
Caller = Callable[[int, Callable[[int], bool]], list[float]]


@attrs.frozen
class TimedCalls:
    """Calls that follow one another.

    Attributes:
        seconds: From the beginning of the first to the end of the last.
        times: Seconds of each call, from its inputs to its results.
        host: Seconds of processor time that the process took, of all threads.
    """

    seconds: float
    times: list[float]
    host: float = 0.0

    @property
    def rate(self) -> float:
        """Calls in a second."""
        return len(self.times) / self.seconds


def in_flight(
    interpreter: Interpreter,
    depth: int,
    sets: Sequence[Mapping[int, Array]],
    *,
    least: int = 1,
    seconds: float = 0.0,
) -> TimedCalls:
    """Let one thread begin runs with ``depth`` of them under way, and wait for the oldest first.

    Args:
        interpreter: Allocated, with ``max_in_flight`` of at least ``depth``.
        depth: Runs that are under way at a time.
        sets: Inputs by tensor index, used in turn.
        least: Runs that are made in any case.
        seconds: More are begun until so much time has passed.
    """
    flying: deque[tuple[float, Invocation]] = deque()
    times: list[float] = []

    def finish() -> None:
        begun, run = flying.popleft()
        run.results()
        times.append(time.perf_counter() - begun)

    count, start, host = 0, time.perf_counter(), time.process_time()
    while count < least or time.perf_counter() - start < seconds:
        if len(flying) == depth:
            finish()
        begun = time.perf_counter()
        flying.append((begun, interpreter.invoke_async(sets[count % len(sets)])))
        count += 1
    while flying:
        finish()
    return TimedCalls(time.perf_counter() - start, times, time.process_time() - host)


def by_threads(caller: Caller, threads: int, *, least: int = 1, seconds: float = 0.0) -> TimedCalls:
    """Let threads call until each has made ``least`` calls and so many seconds have passed.

    Raises:
        Exception: what a caller raised; the first where several did.
    """
    together = threading.Barrier(threads + 1)
    found: list[float] = []
    errors: list[BaseException] = []
    stop: list[bool] = []  # cheaper to ask than an event

    def going(count: int) -> bool:
        return not errors and (not stop or count < least)

    def work(number: int) -> None:
        together.wait(_LONG)
        try:
            found.extend(caller(number, going))
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    together.wait(_LONG)
    start, host = time.perf_counter(), time.process_time()
    while not errors and time.perf_counter() - start < seconds:
        time.sleep(0.01)
    stop.append(True)
    for worker in workers:
        worker.join()
    took, host = time.perf_counter() - start, time.process_time() - host
    if errors:
        raise errors[0]
    return TimedCalls(took, found, host)


def one_by_one(call: Callable[..., Any], sets: Sequence[Sequence[Array]]) -> Caller:
    """A caller that makes one call after another, each thread beginning with another set."""

    def caller(number: int, going: Callable[[int], bool]) -> list[float]:
        times: list[float] = []
        while going(len(times)):
            begun = time.perf_counter()
            call(*sets[(number + len(times)) % len(sets)])
            times.append(time.perf_counter() - begun)
        return times

    return caller
