"""What a `Pool` is asked, and what is run together: requests, and batches of them."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tflgpu.contract.pending import Pending
from tflgpu.errors.blame import Failed, attempt
from tflgpu.interpreter.model import Model, Results
from tflgpu.ir.dtypes import Array

#: Combinations of shapes and types that are known at a time.
_KNOWN = 64


class Request:
    """Arrays of so many items for the model, and what comes of them.

    Attributes:
        given: Arrays in the order of the inputs; by position where they are not gathered, others
            ``named``.
        shapes: Those of an item of each input.
        due: Until when it waits for others, by `time.monotonic`.
        future: Told what came of it; None where a thread waits at the ``gate``.
        batch: What it is run in; None in the queue.
        at: The first of its rows there.
        queued: Whether it waited for a copy of the model.
        placed: Whether they are where the model that the batch was begun for reads them.
        left: Whether nothing waits for results any more.
        ran: Whether its caller ran its batch.
    """

    batch: Batch | None = None
    at = 0
    queued = placed = left = ran = False
    found: Results | None = None
    error: BaseException | None = None

    def __init__(
        self,
        given: Sequence[Any],
        named: Mapping[str, Any],
        items: int,
        shapes: Any,
        patience: float,
        future: Future[Results] | None,
    ) -> None:
        self.given, self.named, self.items, self.shapes = given, named, items, shapes
        self.due = time.monotonic() + patience
        self.future = future
        self.gate = threading.Lock()
        self.gate.acquire()

    def begin(self) -> None:
        """Its run begins: it cannot be cancelled from now on."""
        if self.future is not None and not self.left and not self.future.running():
            self.left = not self.future.set_running_or_notify_cancel()

    def fail(self, error: BaseException, *, shared: bool) -> None:
        """What its run ended in. Raising an error writes a traceback into it, so that of one that
        is ``shared`` it gets a copy."""
        if self.found is None and self.error is None:
            mine = attempt(copy.copy, error) if shared else error
            self.error = error if isinstance(mine, Failed) else mine

    def results(self) -> Results:
        """What came of it.

        Raises:
            InputError, DeviceError, StateError: its run ended in that.
        """
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found

    def tell(self) -> None:
        """Wake its thread, or let the future have what came of it."""
        if self.future is None:
            self.gate.release()
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results())


class Batch:
    """Requests that one copy of the model runs together.

    Attributes:
        copy: The copy.
        size, rows: The model that will probably run it, and where that reads its inputs; None where
            callers cannot write there.
        requests: In the order of their rows, which are ``items`` in all.
        copying: Those whose callers write rows.
        closed: Whether nothing is added any more.
        runner: What runs it: a request, in its caller's thread, or a thread of the pool.
        pending: Its run, where that goes on by itself.
        found: The results of all.
        over: Whether it was run; ``done``: whether its requests were told.
    """

    def __init__(
        self,
        mine: Copy,
        size: int,
        rows: Sequence[Array] | None,
        due: float,
        names: tuple[str, ...],
    ) -> None:
        self.copy, self.size, self.rows, self.due, self.names = mine, size, rows, due, names
        self.requests: list[Request] = []
        self.copying: set[Request] = set()
        self.items = 0
        self.closed = self.over = self.done = False
        self.runner: object = None
        self.pending: Pending | None = None
        self.found: Sequence[Array] | None = None
        self._sleeping: deque[Request] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether a thread is to run it."""
        return self.closed and not (self.over or self.copying) and self.runner is None

    def tell(self) -> None:
        """Let threads and futures have results and errors. What a signal ends is done once more."""
        requests, found = self.requests, self.found
        if not self.done:
            for r in requests:  # here and not in the caller's thread, which has slept
                if found is not None and r.found is None and r.error is None:
                    r.found = Results([a[r.at : r.at + r.items] for a in found], self.names)
            sleeping = [r for r in requests if not (r.future or r.left or r is self.runner)]
            self._sleeping = deque(sleeping)
            self.done = True
            self.wake()
        for request in requests:
            if request.future is not None and not (request.left or request.future.done()):
                request.tell()
        # Results are held by those who get them: memory that a device lent goes back with the last.
        self.requests, self.found, self.runner = [], None, None

    def wake(self) -> None:
        """Wake the next of the threads that wait, if it is done; that wakes another. Many at once
        would wait for the interpreter lock, and most wakings be for nothing."""
        while self._sleeping:
            try:
                request = self._sleeping.popleft()
            except IndexError:  # another thread has just taken the last
                return
            if not request.left:
                request.gate.release()
                return


class Copy:
    """A copy of the model, and the thread that runs its batches where their callers do not.

    Attributes:
        models: By the batch that they are made for.
        batch: What it gathers or runs.
        until: When its thread, which waits, looks by itself.
    """

    def __init__(self, models: Mapping[int, Model], lock: threading.RLock) -> None:
        self.models = models
        self.batch: Batch | None = None
        self.until = 0.0
        self._changed = threading.Condition(lock)

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> None:
        """Wait until `notify`, or so long; under the lock."""
        self.until = time.monotonic() + seconds
        self._changed.wait(seconds)

    def notify(self) -> None:
        """Something changed that its thread waits for; under the lock."""
        self._changed.notify()


class RequestChecks:
    """Makes requests of what callers give.

    Args:
        model: Checks them.
        gathers: Whether they are to be gathered; otherwise the run checks them.
    """

    def __init__(self, model: Model, *, gathers: bool) -> None:
        self._model, self._gathers = model, gathers
        self._plans: dict[Any, tuple[int, Any]] = {}

    def request(
        self,
        arrays: Sequence[Any],
        named: Mapping[str, Any],
        patience: float,
        future: Future[Results] | None,
    ) -> Request:
        """A request, checked where it is to be gathered. What was found out about its shapes and
        types is kept."""
        if not self._gathers:
            return Request(arrays, named, 1, None, patience, future)
        key = None
        if not named:
            key = tuple([(a.shape, a.dtype) if type(a) is np.ndarray else None for a in arrays])
            known = self._plans.get(key)
            if known is not None:
                return Request(arrays, named, *known, patience, future)
        given, items = self._model._request(arrays, named)  # noqa: SLF001
        shapes = tuple(a.shape[1:] for a in given)
        if key is not None and all(a is b for a, b in zip(given, arrays, strict=True)):
            if len(self._plans) >= _KNOWN:
                self._plans.clear()
            self._plans[key] = items, shapes
        return Request(given, {}, items, shapes, patience, future)
