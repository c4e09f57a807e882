"""Gathers requests of many callers for copies of a model that answer them: the work of a `Pool`.

    call -> a batch in a copy that is free: its caller copies its rows there
                -> full: the caller runs it
                -> or one has waited for the deadline: a thread of the pool does
         -> the queue, where no copy is free: what has come is the next batch of the first that is

Without a ``batch`` each request is one by itself, full at once; one thread then answers what is in
the queue, with as many runs in flight as there are copies. Otherwise a request is checked before it
is gathered, so that what is wrong with it is its caller's alone. Those that are run together are of
equal shapes, and never overtake one another.

A thread that wants the interpreter lock while another has it sleeps, and waking takes as long as
much Python. So a request has little of both: what was found out about shapes and types is kept;
large rows are copied by many threads at once, small ones without letting go of the lock; a batch is
waited for asleep; and the threads whose batch is over are not woken all at the same time, but each
by another that has its results (`Batch.wake`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

from tflgpu.backend_kit.forks import Holder
from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.backend_kit.waiting import manner
from tflgpu.errors import BusyError, InputError, StateError
from tflgpu.interpreter.copies import copy
from tflgpu.interpreter.model import Model, Results
from tflgpu.interpreter.requests import Batch, ModelCopy, Request, RequestChecks, refuse

#: Batches that tell how large the next one will be.
_LAST = 4
#: Bytes of a request's rows up to which the interpreter lock is not let go of.
_SMALL = 256 << 10


class Gatherer(Holder):
    """Answers requests by several copies of a model.

    Args:
        copies: Models by their batch, of each copy: all have the same batches, the largest of which
            is the most that is gathered.
        deadline: Seconds that a request waits for others.
        guard: Of the pool.

    Attributes:
        free: The copies that are.
    """

    def __init__(
        self, copies: Sequence[Mapping[int, Model]], deadline: float, guard: RunGuard
    ) -> None:
        self._guard = guard
        self._checking = copies[0][max(copies[0])]
        self._names = self._checking.output_names
        sizes = sorted(copies[0])
        self._most, self._deadline = sizes[-1], deadline
        self._gathers = self._most > 1
        #: The smallest model for so many items.
        self._size_for = [next(n for n in sizes if n >= items) for items in range(self._most + 1)]
        self._last = deque(sizes[:1], _LAST)  # what the last batches needed
        self._checks = RequestChecks(self._checking, gathers=self._gathers)
        # A signal's handler may call the pool wherever a thread of it is.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)  # a run is over, and a thread closes the pool
        self._turns = RunGuard("this pool")  # what threads of the pool are inside of
        self._copies = [ModelCopy(models, self._lock) for models in copies]
        self.free = deque(self._copies)
        self._open: Batch | None = None  # what is being gathered
        self._queue: deque[Request] = deque()  # empty where a copy is free, but for the leader
        self._submits = not self._gathers  # whether runs go on by themselves, as far as is known
        self._leads = False  # whether a thread answers what is in the queue
        self._closed = False
        self._runs: Counter[int] = Counter()
        self.belongs_to_process()
        self._threads = [
            threading.Thread(target=self._serve, args=(each,), name="tflgpu-pool", daemon=True)
            for each in self._copies
        ]
        for thread in self._threads:
            thread.start()

    @property
    def runs(self) -> dict[int, int]:
        """How many runs there were, by the number of requests' items in them."""
        with self._lock:
            return dict(sorted(self._runs.items()))

    @property
    def is_in_a_future(self) -> bool:
        """Whether this thread has the lock of a future (in a signal's handler). The pool's threads
        may wait for that lock, so that it must not wait for them."""
        requests = [*self._queue, *(r for each in self._copies for r in each.requests())]
        return any(request.has_lock for request in requests)

    def submit(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Future[Results]:
        """Begin to answer a request.

        Raises:
            InputError: as `Model.__call__`, where it is gathered.
            StateError: closed.
        """
        future: Future[Results] = Future()
        self._add(self._checks.request(arrays, named, self._deadline, future))
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
        patience = self._deadline if timeout is None else min(self._deadline, timeout)
        request = self._checks.request(arrays, named, patience, None)
        try:
            self._add(request)
            batch = request.batch
            if batch is not None and batch.runner is request:
                self._run(batch)
                request.ran = True
            elif timeout is None:
                request.gate.acquire()
            elif not request.gate.acquire(True, timeout):
                if self._forget(request):
                    raise BusyError(
                        f"no copy of the model was free in {timeout:g} seconds; wait longer, "
                        "make the pool larger, or let fewer callers come"
                    )
                request.gate.acquire()
        finally:
            request.left = True
            batch = request.batch
            if batch is None:
                self._forget(request)
            elif batch.runner is request:  # a signal came in between
                self._leave(batch)
            elif not request.ran:
                batch.wake()
        return request.results()

    def refuse(self) -> None:
        """Refuse what was not begun."""
        if self.inherited:
            return
        with self._lock:
            self._closed = True
            refused, self._queue, self._open = list(self._queue), deque(), None
            for each in self._copies:
                each.notify()
        refuse(refused)

    def close(self) -> None:
        """Refuse what was not begun, and wait for the runs that are under way."""
        self.refuse()
        with self._lock:
            while any(each.batch is not None and each.batch.runner for each in self._copies):
                self._idle.wait()

    def join(self) -> None:
        """Wait for the threads, which have nothing left to run; one of them waits for none."""
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    # Inside: in threads of callers

    def _add(self, request: Request) -> None:
        """Put a request into a batch, with its rows where they are read, or into the queue. The
        caller may be the one who is to run that: its ``runner``.

        Raises:
            StateError: closed.
        """
        places = None
        try:
            with self._lock:
                if self._closed:
                    raise StateError("this pool is closed")
                waits = self._queue or (self._leads and request.future is not None)
                batch = None if waits else self._gathered(request)
                if batch is None:
                    request.queued = True
                    self._queue.append(request)
                elif batch.items <= batch.size:
                    batch.copying.add(request)
                    places = batch.rows
            if places is not None:
                for rows, array in zip(places, request.given, strict=True):
                    copy(rows[request.at : request.at + request.items], array, _SMALL)
                request.placed = True
        finally:
            batch = request.batch
            # What was queued is in a batch that a thread of the pool was told of.
            if batch is not None and not request.queued:
                batch.copying.discard(request)
                if batch.closed and not batch.copying:
                    self._hand_on(batch, request)

    def _hand_on(self, batch: Batch, request: Request) -> None:
        """A batch is full, with its rows: its last caller runs it, or else a thread of the pool."""
        with self._lock:
            if batch.is_ready and request.future is None and not self._closed:
                batch.runner = request
            elif batch.is_ready:
                self._leads |= self._submits
                batch.copy.notify()

    def _leave(self, batch: Batch) -> None:
        """The thread that runs a batch goes in the middle: what is left to do is done for the
        others."""
        if batch.over:
            batch.tell()
            return
        with self._lock:
            batch.runner = None
            batch.copy.notify()
            self._idle.notify_all()

    def _forget(self, request: Request) -> bool:
        """Take a request out of the queue; False where it is in a batch, or will be at once."""
        with self._lock:
            if request.batch is not None:
                return False
            if request in self._queue:
                if self._queue.index(request) < len(self.free) and not request.left:
                    return False
                self._queue.remove(request)
            return True

    # Inside: under the lock

    def _gathered(self, request: Request) -> Batch | None:
        """The batch that a request is in now; None where no copy is free for it."""
        batch = self._open
        if batch is not None and not (
            0 < request.items <= self._most - batch.items
            and request.shapes == batch.requests[0].shapes
        ):
            self._end(batch)
            batch.copy.notify()
            batch = None
        if batch is None:
            if not self.free:
                return None
            batch = self._open = self._begun(self.free[0], request)
        request.batch, request.at = batch, batch.items
        batch.requests.append(request)
        batch.items += request.items
        if batch.items >= self._most or not request.items:
            self._end(batch)
        else:
            batch.due = min(batch.due, request.due)
            if batch.due < batch.copy.until:
                batch.copy.notify()
        return batch

    def _begun(self, mine: ModelCopy, first: Request) -> Batch:
        size = max(self._last)
        model = mine.models[size]
        rows = model._input_rows(first.shapes) if self._gathers else None  # noqa: SLF001
        batch = mine.batch = Batch(mine, size, rows, first.due, self._names)
        self.free.popleft()
        return batch

    def _end(self, batch: Batch) -> None:
        """Nothing is added to a batch any more."""
        batch.closed = True
        if self._open is batch:
            self._open = None

    def _next(self, mine: ModelCopy) -> Batch | None:
        """A batch that the thread of a copy is to run now; None where there will be none."""
        patience = self._deadline  # saves being woken by the first request of each batch
        while True:
            batch = mine.batch
            if self._closed and (batch is None or batch.runner is None):
                return None
            if batch is None:
                mine.wait(patience or threading.TIMEOUT_MAX)
                patience = 0.0
            elif batch.is_ready:
                batch.runner = mine
                return batch
            elif batch.closed:
                mine.wait()
            else:
                left = batch.due - time.monotonic()
                if left > 0:
                    mine.wait(left)
                else:
                    self._end(batch)

    def _give_back(self, over: Batch) -> None:
        """A copy is free; what is in the queue has come while all were busy."""
        mine = over.copy
        over.over = True
        mine.told.add(over)
        mine.batch = None
        self.free.append(mine)
        while self._queue and not self._leads:
            batch = self._from_queue()
            if batch is None:
                break
            self._leads |= self._submits
            batch.copy.notify()
        if self._closed:
            mine.notify()
            self._idle.notify_all()

    def _from_queue(self) -> Batch | None:
        """The batch that the next in the queue is in now; None where none is, or no copy is free
        for it."""
        batch = None
        while self._queue and batch is None:
            request = self._queue[0]
            if request.future is None or not request.future.cancelled():
                batch = self._gathered(request)
                if batch is None:
                    break
            self._queue.popleft()
        return batch

    # Inside: in the thread that runs a batch

    def _serve(self, mine: ModelCopy) -> None:
        while True:
            with self._lock:
                batch = self._next(mine)
            if batch is None:
                break
            with self._turns.call:  # futures' callbacks are called inside
                if self._submits:
                    self._lead(batch)
                else:
                    self._run(batch)
                del batch
        if mine.batch is not None:
            refuse(mine.batch.requests)
            mine.batch.tell()

    def _lead(self, batch: Batch | None) -> None:
        """Answer a request, and what is in the queue, by all copies that are free: begin what can
        be begun, then wait for the oldest. One thread that does not sleep does it faster than
        several."""
        flying: deque[Batch] = deque()
        while batch is not None or flying:
            if batch is not None:
                self._attempt(batch, self._begin)
                flying.append(batch)
            else:
                batch = flying.popleft()
                self._attempt(batch, self._finish)
                with self._lock:
                    self._give_back(batch)
                batch.tell()
            with self._lock:
                batch = self._from_queue() if self._submits else None
                if batch is not None:
                    batch.runner = self
                self._leads = self._submits and (batch is not None or bool(flying))

    def _begin(self, batch: Batch) -> None:
        (request,), model = batch.requests, batch.copy.models[1]
        if not request.left:
            batch.pending = model._begin(request.given, request.named)  # noqa: SLF001
            if batch.pending is None:
                request.found = model(*request.given, **request.named)
                self._submits = self._leads = False

    def _finish(self, batch: Batch) -> None:
        if batch.pending is not None:
            batch.requests[0].found = batch.copy.models[1]._finish(batch.pending)  # noqa: SLF001

    def _run(self, batch: Batch) -> None:
        # One that asks the device again and again keeps the interpreter lock from others.
        manner.asleep = len(batch.requests) > 1 or len(self.free) + 1 < len(self._copies)
        try:
            self._attempt(batch, self._compute)
        finally:
            manner.asleep = False
        with self._lock:
            if self._gathers:
                self._last.append(self._size_for[min(batch.items, self._most)])
                self._runs[batch.items] += 1
            self._give_back(batch)
        batch.tell()

    def _attempt(self, batch: Batch, action: Callable[[Batch], None]) -> None:
        """What an action ends in is for the batch's callers, but for what a signal's handler raises
        in a thread of theirs."""
        requests = batch.requests
        for request in requests:
            request.begin()
        is_mine = isinstance(batch.runner, Request)
        try:
            # A thread of the pool is inside of a call of it, too: inputs may call it again.
            with nullcontext() if is_mine else self._guard.call:
                action(batch)
        except BaseException as error:
            if is_mine and (not isinstance(error, Exception)):
                raise
            for request in requests:
                request.fail(error, shared=len(requests) > 1)

    def _compute(self, batch: Batch) -> None:
        """Results of a batch, by the smallest model that takes it, or by one twice as large where
        rows are already.

        Raises:
            InputError, DeviceError: as `Model.__call__`.
        """
        requests, models = batch.requests, batch.copy.models
        size = self._size_for[min(batch.items, self._most)]
        first, model = requests[0], models[size]
        if all(request.left for request in requests):
            return
        if not self._gathers or not 0 < batch.items <= self._most:
            first.found = model(*first.given, **first.named)
            return
        if batch.rows is not None and size <= batch.size <= 2 * size:
            model = models[batch.size]
        elif batch.rows is not None:
            models[batch.size]._is_filled = False  # noqa: SLF001  (with rows that no run has seen)
        parts = [request.given for request in requests]
        is_there = model is models[batch.size]
        placed = [is_there and request.placed for request in requests]
        try:
            batch.found = model._together(parts, placed)  # noqa: SLF001
        except InputError:
            # Something about the numbers of one of them (an index that is out of range): the others
            # are not to suffer.
            if len(requests) == 1:
                raise
            for request in requests:
                try:
                    found = model._together([request.given], [False])  # noqa: SLF001
                    request.found = Results(found, self._names)
                except InputError as error:
                    request.fail(error, shared=False)
