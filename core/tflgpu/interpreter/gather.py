"""Requests of many callers gathered into batches: what `Pool` does with ``batch=N``.

    call -> the batch that is being gathered, in a copy of the model that is free: its caller copies the
            rows there itself -> full, or one has waited for the deadline: the copy's thread runs it
         -> the queue, where no copy is free: what has come is the next batch of the copy that is free first

A request is checked before it is gathered, so that what is wrong with one is its caller's alone. Those
that are run together are of equal shapes, and never overtake one another.

Of the interpreter lock a request has little: what was found out about shapes and types is kept; rows are
copied by many threads at once; and the threads whose batch is over are not woken all at the same time, but each
by another that has got its results (`_Batch.wake`).
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tflgpu.blame import Failed, attempt, shown
from tflgpu.contract.forks import Holder
from tflgpu.contract.waiting import manner
from tflgpu.errors import BusyError, InputError, OptionError, StateError
from tflgpu.interpreter.model import Model, Results
from tflgpu.ir.dtypes import Array
from tflgpu.options.kinds import Count

#: Seconds that a request may wait for others, at most.
_LONGEST = 60.0
#: Threads that are woken at once when their batch is over.
_ABREAST = 4
#: Combinations of shapes and types that are known at a time.
_KNOWN = 64


class _Request:
    """What a caller wants to know: an array for each input, of so many items whose ``shapes`` are these.

    Attributes:
        due: Until when it waits for others, by `time.monotonic`.
        future: Told the results; None where a thread waits for the ``gate``.
        batch: What it is run in; None in the queue.
        at: The first of its rows there.
        placed: Whether they are where the model that the batch was begun for reads them.
        left: Whether nothing waits for results any more.
    """

    __slots__ = (
        "at", "batch", "due", "error", "found", "future", "gate", "given", "items", "left", "placed",
        "shapes",
    )  # fmt: skip

    def __init__(
        self, given: Sequence[Array], items: int, shapes: Any, due: float, future: Any
    ) -> None:
        self.given, self.items, self.shapes, self.due = given, items, shapes, due
        self.future: Future[Results] | None = future
        self.gate = threading.Lock()
        self.gate.acquire()
        self.batch: _Batch | None = None
        self.at = 0
        self.placed = self.left = False
        self.found: Results | None = None
        self.error: BaseException | None = None

    def begin(self) -> None:
        """Its run begins: it cannot be cancelled from now on."""
        if self.future is not None:
            self.left = not self.future.set_running_or_notify_cancel()

    def fail(self, error: BaseException) -> None:
        """What its run ended in: an error of its own, since raising it writes a traceback into it."""
        mine = attempt(copy.copy, error)
        self.error = error if isinstance(mine, Failed) else mine

    def results(self) -> Results:
        """What came of it.

        Raises:
            InputError, DeviceError, StateError: its run ended in that.
        """
        if self.error is not None:
            raise self.error
        if self.found is None:
            assert self.batch is not None
            rows = slice(self.at, self.at + self.items)
            return Results([array[rows] for array in self.batch.found], self.batch.names)
        return self.found

    def tell(self) -> None:
        """Wake its thread, or let the future have what came of it."""
        if self.future is None:
            self.gate.release()
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results())


class _Batch:
    """Requests that one copy of the model runs together.

    Attributes:
        copy: The copy.
        shapes: Those of an item of each of its requests.
        size, rows: The model that it will probably be run by, and where that reads its inputs; None
            where callers cannot write there.
        copying: Requests whose callers write there.
        closed: Whether nothing is added any more.
        found: The results of all.
        done: Whether they, or errors, are there.
    """

    def __init__(self, mine: _Copy, first: _Request, size: int, names: tuple[str, ...]) -> None:
        self.copy, self.shapes, self.size, self.names = mine, first.shapes, size, names
        self.rows = mine.models[size]._input_rows(first.shapes)  # noqa: SLF001
        self.requests: list[_Request] = []
        self.copying: set[_Request] = set()
        self.items, self.due = 0, first.due
        self.closed = self.done = False
        self.found: Sequence[Array] = ()
        self._sleeping: deque[_Request] = deque()

    def tell(self) -> None:
        """Results or errors are there."""
        told = [request for request in self.requests if not request.left]
        self._sleeping.extend(request for request in told if request.future is None)
        self.done = True
        for _ in range(_ABREAST):
            self.wake()
        for request in told:
            if request.future is not None:
                request.tell()

    def wake(self) -> None:
        """Wake the next of the threads that wait. All at once would be in each other's way."""
        while self._sleeping:
            try:
                request = self._sleeping.popleft()
            except IndexError:  # another thread has just taken the last
                return
            if not request.left:
                request.tell()
                return


class _Copy:
    """A copy of the model, and its thread.

    Attributes:
        models: By the batch that they are made for.
        batch: What it gathers or runs.
        until: When its thread, which waits, looks by itself.
    """

    def __init__(self, models: Mapping[int, Model], lock: threading.RLock) -> None:
        self.models = models
        self.batch: _Batch | None = None
        self.until = math.inf
        self._changed = threading.Condition(lock)
        self.thread: threading.Thread | None = None

    def wait(self, seconds: float | None = None) -> None:
        """Wait until `notify`, or so long; under the lock."""
        self.until = math.inf if seconds is None else time.monotonic() + seconds
        self._changed.wait(seconds)

    def notify(self) -> None:
        """Something changed that it waits for; under the lock."""
        self._changed.notify()


class Gatherer(Holder):
    """Answers requests in batches, by several copies of a model.

    Args:
        copies: Models by their batch, of each copy: all have the same batches, the largest of which
            is the most that is gathered.
        deadline: Seconds that a request waits for others.
    """

    def __init__(self, copies: Sequence[Mapping[int, Model]], deadline: float) -> None:
        self._checking = copies[0][max(copies[0])]
        self._names = self._checking.output_names
        self._sizes = sorted(copies[0])
        self._most, self._deadline = self._sizes[-1], deadline
        self._usual = self._most  # the model that ran the last batch
        self._plans: dict[Any, tuple[int, Any]] = {}
        # A signal's handler may close the pool wherever a thread of it is.
        self._lock = threading.RLock()
        self._copies = [_Copy(models, self._lock) for models in copies]
        self._free = deque(self._copies)
        self._open: _Batch | None = None  # what is being gathered
        self._queue: deque[_Request] = deque()  # empty where a copy is free
        self._closed = False
        self._runs: Counter[int] = Counter()
        self.belongs_to_process()
        for each in self._copies:
            each.thread = threading.Thread(
                target=self._serve, args=(each,), name="tflgpu-pool", daemon=True
            )
            each.thread.start()

    @property
    def runs(self) -> dict[int, int]:
        """How many runs there were, by the number of requests' items in them."""
        with self._lock:
            return dict(sorted(self._runs.items()))

    def submit(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Future[Results]:
        """Begin to answer a request.

        Raises:
            InputError: as `Model.__call__`.
            StateError: closed.
        """
        future: Future[Results] = Future()
        self._add(self._request(arrays, named, None, future))
        return future

    def call(
        self, arrays: Sequence[Any], named: Mapping[str, Any], timeout: float | None
    ) -> Results:
        """Answer a request, which waits for others no longer than ``timeout`` seconds, and is to be
        taken up by then.

        Raises:
            BusyError: it was not.
            InputError, DeviceError, StateError: as `Model.__call__`.
        """
        request = self._request(arrays, named, timeout, None)
        try:
            self._add(request)
            if not request.gate.acquire(True, -1 if timeout is None else timeout):
                if self._forget(request):
                    raise busy(timeout)
                request.gate.acquire()
        finally:
            request.left = True
            if request.batch is None:
                self._forget(request)
            elif request.batch.done:
                request.batch.wake()
        return request.results()

    def close(self) -> None:
        """Refuse what was not begun, and wait for the runs that are under way."""
        if self.inherited:
            return
        with self._lock:
            self._closed = True
            refused, self._queue, self._open = list(self._queue), deque(), None
            for each in self._copies:
                each.notify()
        _refuse(refused)
        for request in refused:
            if not request.left:
                request.tell()
        for each in self._copies:
            if each.thread is not threading.current_thread() and each.thread is not None:
                each.thread.join()

    # Inside: in threads of callers

    def _request(
        self, arrays: Sequence[Any], named: Mapping[str, Any], timeout: float | None,
        future: Future[Results] | None,
    ) -> _Request:  # fmt: skip
        """A request, checked. What was found out about its shapes and types is kept."""
        patience = self._deadline if timeout is None else min(self._deadline, timeout)
        key = None
        if not named and all(type(a) is np.ndarray for a in arrays):
            key = tuple([(a.shape, a.dtype) for a in arrays])
            known = self._plans.get(key)
            if known is not None:
                return _Request(arrays, *known, time.monotonic() + patience, future)
        given, items = self._checking._request(arrays, named)  # noqa: SLF001
        shapes = tuple(a.shape[1:] for a in given)
        if key is not None and all(a is b for a, b in zip(given, arrays, strict=True)):
            if len(self._plans) >= _KNOWN:
                self._plans.clear()
            self._plans[key] = items, shapes
        return _Request(given, items, shapes, time.monotonic() + patience, future)

    def _add(self, request: _Request) -> None:
        """Put a request into a batch, with its rows where they are read, or into the queue.

        Raises:
            StateError: closed.
        """
        try:
            with self._lock:
                if self._closed:
                    raise StateError("this pool is closed")
                batch = None if self._queue else self._gathered(request)
                if batch is None:
                    self._queue.append(request)
                    return
                rows = batch.rows
                if rows is None or batch.items > batch.size:
                    return
                batch.copying.add(request)
            for row, array in zip(rows, request.given, strict=True):
                np.copyto(row[request.at : request.at + request.items], array)
            request.placed = True
        finally:
            batch = request.batch
            if batch is not None and batch.copying:
                with self._lock:
                    batch.copying.discard(request)
                    if batch.closed and not batch.copying:
                        batch.copy.notify()

    def _forget(self, request: _Request) -> bool:
        """Take a request out of the queue; False where it is in a batch."""
        with self._lock:
            if request.batch is None and request in self._queue:
                self._queue.remove(request)
            return request.batch is None

    # Inside: under the lock

    def _gathered(self, request: _Request) -> _Batch | None:
        """The batch that a request is in now; None where no copy is free for it."""
        batch = self._open
        if batch is not None and not self._fits(request, batch):
            self._end(batch)
            batch = None
        if batch is None:
            if not self._free:
                return None
            mine = self._free[0]
            batch = mine.batch = self._open = _Batch(mine, request, self._usual, self._names)
            self._free.popleft()
        request.batch, request.at = batch, batch.items
        batch.requests.append(request)
        batch.items += request.items
        batch.due = min(batch.due, request.due)
        if batch.items >= self._most or not request.items:
            self._end(batch)
        elif batch.due < batch.copy.until:
            batch.copy.notify()
        return batch

    def _fits(self, request: _Request, batch: _Batch) -> bool:
        fits = 0 < request.items <= self._most - batch.items
        return fits and request.shapes == batch.shapes

    def _end(self, batch: _Batch) -> None:
        """Nothing is added to a batch any more."""
        batch.closed = True
        if self._open is batch:
            self._open = None
        batch.copy.notify()

    def _next(self, mine: _Copy) -> _Batch | None:
        """A batch of a copy that is to be run now; None where the pool is closed."""
        patience: float | None = self._deadline  # saves being woken by each first request
        while not self._closed:
            batch = mine.batch
            if batch is None:
                mine.wait(patience)
                patience = None
            elif not batch.closed:
                left = batch.due - time.monotonic()
                if left > 0:
                    mine.wait(left)
                else:
                    self._end(batch)
            elif batch.copying:
                mine.wait()
            else:
                return batch
        return None

    def _give_back(self, mine: _Copy) -> None:
        """A copy is free; what is in the queue has come while all were busy."""
        mine.batch = None
        self._free.append(mine)
        while self._queue:
            request = self._queue[0]
            is_wanted = request.future is None or not request.future.cancelled()
            if is_wanted and self._gathered(request) is None:
                return
            self._queue.popleft()

    # Inside: in a thread of a copy

    def _serve(self, mine: _Copy) -> None:
        while True:
            with self._lock:
                batch = self._next(mine)
                if batch is None:
                    break
                self._usual = next((n for n in self._sizes if n >= batch.items), self._most)
                self._runs[batch.items] += 1
                model = mine.models[self._usual]
            for request in batch.requests:
                request.begin()
            # A thread that asks the device again and again keeps the interpreter lock from others.
            manner.asleep = len(batch.requests) > 1
            try:
                self._run(model, batch)
            except BaseException as error:  # noqa: BLE001  (its callers have it, whatever it is)
                for request in batch.requests:
                    request.fail(error)
            with self._lock:
                self._give_back(mine)
            batch.tell()
            del batch
        if mine.batch is not None:
            _refuse(mine.batch.requests)
            mine.batch.tell()

    def _run(self, model: Model, batch: _Batch) -> None:
        requests = batch.requests
        if all(request.left for request in requests):
            return
        if not 0 < batch.items <= self._most:
            requests[0].found = model._run_alone(requests[0].given)  # noqa: SLF001
            return
        usual = batch.copy.models[batch.size]
        is_right = model is usual
        if not is_right:
            usual._is_filled = False  # by rows that no run has seen  # noqa: SLF001
        parts = [request.given for request in requests]
        try:
            batch.found = model._together(  # noqa: SLF001
                parts, [is_right and request.placed for request in requests]
            )
        except InputError as error:
            # Something about the numbers of one of them (an index that is out of range): the others are
            # not to suffer.
            for request in requests:
                if len(requests) == 1:
                    request.fail(error)
                elif not request.left:
                    self._run_again(model, request)

    def _run_again(self, model: Model, request: _Request) -> None:
        """Alone."""
        try:
            found = model._together([request.given], [False])  # noqa: SLF001
            request.found = Results(found, self._names)
        except InputError as error:
            request.fail(error)


def _refuse(requests: Sequence[_Request]) -> None:
    for request in requests:
        request.begin()
        request.error = StateError("this pool is closed")


def batches_of(batch: Any, sizes: Sequence[int] | None) -> list[int]:
    """The batches to compile, in order: by default the powers of 2, and the largest.

    Raises:
        OptionError: no whole numbers, or ``batch`` is not the largest of them.
    """
    most = Count().read("batch", batch)
    if sizes is None:
        return sorted({most, *(1 << n for n in range(most.bit_length()))})
    found = sorted({Count().read("sizes", size) for size in sizes})
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
