"""Gathers requests of many callers for copies of a model that answer them: the work of a `Pool`.

    call -> a batch in a copy that is free: its caller copies its rows there
                -> full: the caller runs it
                -> or the first has waited for the deadline: its caller does
                   (of futures, a thread of the pool does both)
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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.backend_kit.waiting import manner
from tflgpu.errors import BusyError, DeviceLostError, StateError
from tflgpu.interpreter.batch_queue import BatchQueue
from tflgpu.interpreter.copies import copy
from tflgpu.interpreter.model import Model, Results
from tflgpu.interpreter.requests import Batch, ModelCopy, Request, refuse

#: Bytes of a request's rows up to which the interpreter lock is not let go of.
_SMALL = 256 << 10


class Gatherer(BatchQueue):
    """Answers requests by several copies of a model, in the threads of callers and its own.

    Args:
        copies: As `BatchQueue` takes them.
        deadline: Seconds that a request waits for others.
        guard: Of the pool.
        devices: As `BatchQueue` takes them.
        queue_limit: As `BatchQueue` takes it.
    """

    def __init__(
        self,
        copies: Sequence[Mapping[int, Model]],
        deadline: float,
        guard: RunGuard,
        devices: Sequence[int],
        queue_limit: int | None,
    ) -> None:
        super().__init__(copies, deadline, devices, queue_limit)
        self._guard = guard
        self._turns = RunGuard("this pool")  # what threads of the pool are inside of
        self._threads = [
            threading.Thread(target=self._serve, args=(each,), name="tflgpu-pool", daemon=True)
            for each in self._copies
        ]
        for thread in self._threads:
            thread.start()

    @property
    def copies(self) -> Sequence[ModelCopy]:
        """All copies, those that are left out among them."""
        return self._copies

    def check_outside(self) -> None:
        """Refuse what waits for runs, in the middle of a call or of a future's callback.

        Raises:
            StateError: it is.
        """
        self._guard.check_outside()
        self._turns.check_outside()

    def submit(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Future[Results]:
        """Begin to answer a request.

        Raises:
            InputError: as `Model.__call__`, where it is gathered.
            StateError: closed.
            QueueFullError: too many requests wait.
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
            QueueFullError: too many requests wait.
            InputError, DeviceError, StateError: as `Model.__call__`.
        """
        patience = self._deadline if timeout is None else min(self._deadline, timeout)
        request = self._checks.request(arrays, named, patience, None)
        request.keeps_time = timeout is None
        try:
            self._add(request)
            batch = request.batch
            if batch is not None and batch.timekeeper is request:
                self._wait_until_due(batch, request)
            if batch is not None and batch.runner is request:
                self._run(batch)
                request.ran = request.batch is batch
                if not request.ran:  # its device was lost: another is to answer it
                    request.gate.acquire()
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
            elif request in (batch.runner, batch.timekeeper):  # a signal came in between
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
            self._idle.notify_all()
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
            QueueFullError: too many requests wait.
        """
        places = None
        try:
            with self._lock:
                if self._closed:
                    raise StateError("this pool is closed")
                waits = self._queue or (self._leads and request.future is not None)
                batch = None if waits else self._gathered(request)
                if batch is None:
                    self._check_room()
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

    def _wait_until_due(self, batch: Batch, request: Request) -> None:
        """Wait for others, and end the batch when it is due. It is run by this thread, or by the
        last one that copies rows."""
        if request.gate.acquire(True, max(0.0, request.due - time.monotonic())):
            request.gate.release()  # it was full, and run, before that
            return
        with self._lock:
            if batch.timekeeper is request and not self._closed:
                if not batch.copying:
                    batch.runner = request
                self._end(batch)

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
            batch.runner = batch.timekeeper = None
            batch.copy.notify()
            self._idle.notify_all()

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
            if isinstance(error, DeviceLostError) and self._left_out(batch, error):
                return
            for request in requests:
                request.fail(error, shared=len(requests) > 1)

    def _compute(self, batch: Batch) -> None:
        items = batch.items if self._gathers and batch.items <= self._most else 0
        batch.compute(self._size_for[items] if items else 0)
