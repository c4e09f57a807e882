"""Requests of many callers gathered into batches: what `Pool` does with ``batch=N``.

    submit -> queue -> a copy of the model that is free takes the oldest request, waits until there are
    enough for a full batch, or until one has waited for the deadline -> one run -> an answer each

A request is checked before it is queued, so that what is wrong with one is its caller's alone. Those
that are run together are of equal shapes, and never overtake one another.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Condition, RLock
from typing import Any

import attrs

from tflgpu.blame import Failed, attempt, shown
from tflgpu.errors import BusyError, InputError, OptionError, StateError
from tflgpu.interpreter.model import Model, Results
from tflgpu.ir.dtypes import Array
from tflgpu.options.kinds import WholeNumber

#: Seconds that a request may wait for others, at most.
_LONGEST = 60.0


@attrs.define(eq=False)
class _Request:
    """What a caller wants to know; ``shapes`` are those of an item of each input. It waits for others
    until it is ``due``, by `time.monotonic`."""

    given: Mapping[int, Array]
    items: int
    shapes: tuple[tuple[int, ...], ...]
    future: Future[Results]
    due: float


class Gatherer:
    """Answers requests in batches, by several copies of a model.

    Args:
        copies: Models by their batch, of each copy: all have the same batches, the largest of which
            is the most that is gathered.
        deadline: Seconds that a request waits for others.
    """

    def __init__(self, copies: Sequence[Mapping[int, Model]], deadline: float) -> None:
        self._copies = deque(copies)
        self._checking = copies[0][max(copies[0])]
        self._sizes = sorted(copies[0])
        self._most, self._deadline = self._sizes[-1], deadline
        self._queue: deque[_Request] = deque()
        self._waiting = 0  # items in the queue
        self._changed = Condition(RLock())
        self._closed = False
        self._workers = ThreadPoolExecutor(len(copies), "tflgpu-pool")
        self._runs: Counter[int] = Counter()

    def submit(
        self, arrays: Sequence[Any], named: Mapping[str, Any], timeout: float | None = None
    ) -> Future[Results]:
        """Begin to answer a request, which waits for others no longer than ``timeout`` seconds.

        Raises:
            InputError: as `Model.__call__`.
            StateError: closed.
        """
        given, items = self._checking._request(arrays, named)  # noqa: SLF001
        shapes = tuple(given[i].shape[1:] for i in sorted(given))
        patience = self._deadline if timeout is None else min(self._deadline, timeout)
        request = _Request(given, items, shapes, Future(), time.monotonic() + patience)
        with self._changed:
            if self._closed:
                raise StateError("this pool is closed")
            # As many turns as requests: those that find their request answered end at once.
            try:
                self._workers.submit(self._turn)
            except RuntimeError:  # the process is about to end
                raise StateError("this pool is closed") from None
            is_first = all(request.due < other.due for other in self._queue)
            self._queue.append(request)
            self._waiting += items
            if is_first or self._waiting >= self._most:
                self._changed.notify_all()
        return request.future

    @property
    def runs(self) -> dict[int, int]:
        """How many runs there were, by the number of requests' items in them."""
        with self._changed:
            return dict(sorted(self._runs.items()))

    def call(
        self, arrays: Sequence[Any], named: Mapping[str, Any], timeout: float | None
    ) -> Results:
        """Answer a request, which is to be taken up within ``timeout`` seconds.

        Raises:
            BusyError: it was not.
            InputError, DeviceError, StateError: as `Model.__call__`.
        """
        future = self.submit(arrays, named, timeout)
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            # Otherwise a thread is about to take it, it is being computed, or that was its own error.
            if self._is_next(future) or not future.cancel():
                return future.result()
            self._forget(future)
            raise busy(timeout) from None
        except BaseException:
            if future.cancel():
                self._forget(future)
            raise

    def _is_next(self, future: Future[Results]) -> bool:
        """Whether there is a free copy for the run that a request in the queue will be part of."""
        with self._changed:
            runs, items, first = 0, 0, None
            for request in self._queue:
                if first is None or not self._fits(request, items, first):
                    runs, items, first = runs + 1, 0, request
                items += request.items
                if request.future is future:
                    return runs <= len(self._copies)
        return False

    def _forget(self, future: Future[Results]) -> None:
        with self._changed:
            for request in self._queue:
                if request.future is future:
                    self._queue.remove(request)
                    self._waiting -= request.items
                    return

    def close(self) -> None:
        """Refuse what is in the queue, and wait for the runs that are under way."""
        with self._changed:
            self._closed = True
            refused, self._queue, self._waiting = self._queue, deque(), 0
            self._changed.notify_all()
        for request in refused:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(StateError("this pool is closed"))
        self._workers.shutdown()

    # Inside

    def _turn(self) -> None:
        with self._changed:
            batch = self._next()
            if not batch:
                return
            models = self._copies.popleft()  # there are as many as workers
            self._runs[sum(request.items for request in batch)] += 1
        try:
            _answer(self._fitting(models, batch), batch)
        except BaseException as error:  # noqa: BLE001  (its callers have it, whatever it is)
            _fail(batch, error)
        finally:
            with self._changed:
                self._copies.append(models)

    def _next(self) -> list[_Request]:
        """The requests of the next run, once it is time for it; none where others have taken them."""
        with self._changed:
            while self._queue and self._waiting < self._most:
                left = min(request.due for request in self._queue) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch: list[_Request] = []
            items = 0
            while self._queue:
                first = self._queue[0]
                if batch and not self._fits(first, items, batch[0]):
                    break
                self._queue.popleft()
                self._waiting -= first.items
                if first.future.set_running_or_notify_cancel():
                    batch.append(first)
                    items += first.items
            return batch

    def _fits(self, request: _Request, items: int, first: _Request) -> bool:
        """Whether a request goes with so many items, those of ``first`` among them."""
        return items + request.items <= self._most and request.shapes == first.shapes

    def _fitting(self, models: Mapping[int, Model], batch: Sequence[_Request]) -> Model:
        """The copy's model with the smallest batch that takes all of it."""
        items = sum(request.items for request in batch)
        return models[next((size for size in self._sizes if size >= items), self._most)]


def _answer(model: Model, batch: Sequence[_Request]) -> None:
    try:
        found = model._together([request.given for request in batch])  # noqa: SLF001
    except InputError as error:
        # Something about the numbers of one of them (an index that is out of range): the others are
        # not to suffer.
        if len(batch) == 1:
            _fail(batch, error)
            return
        for request in batch:
            _answer(model, [request])
        return
    for request, results in zip(batch, found, strict=True):
        request.future.set_result(results)


def _fail(batch: Sequence[_Request], error: BaseException) -> None:
    for request in batch:
        if not request.future.done():
            # One for each: raising it writes a traceback into it, in a thread of the caller's.
            mine = attempt(copy.copy, error)
            request.future.set_exception(error if isinstance(mine, Failed) else mine)


def batches_of(batch: Any, sizes: Sequence[int] | None) -> list[int]:
    """The batches to compile, in order: by default the powers of 2, and the largest.

    Raises:
        OptionError: no whole numbers, or ``batch`` is not the largest of them.
    """
    most = WholeNumber().read("batch", batch)
    if sizes is None:
        return sorted({most, *(1 << n for n in range(most.bit_length()))})
    found = sorted({WholeNumber().read("sizes", size) for size in sizes})
    if not found or found[-1] != most:
        raise OptionError(f"sizes are {found}; the largest has to be the batch, {most}")
    return found


def check_deadline(value: Any) -> None:
    """That it is a number of seconds to wait for.

    Raises:
        OptionError: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LONGEST:
        raise OptionError(f"deadline is {shown(value)}; it is seconds, from 0 to {_LONGEST:g}")


def busy(timeout: float | None) -> BusyError:
    """That a request was not taken up in time."""
    return BusyError(
        f"no copy of the model was free in {timeout:g} seconds; wait longer, make the pool "
        "larger, or let fewer callers come"
    )
