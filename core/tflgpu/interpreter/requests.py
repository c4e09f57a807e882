"""Requests to a `Pool`, and the batches in which they run."""

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
from tflgpu.errors import InputError, StateError
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
        keeps_time: Whether its caller ends a batch that it begins, at the deadline.
    """

    batch: Batch | None = None
    at = 0
    queued = placed = left = ran = keeps_time = False
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

    @property
    def has_lock(self) -> bool:
        """Whether this thread has the lock of its future."""
        future: Any = self.future
        return future is not None and bool(future._condition._is_owned())  # noqa: SLF001

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

    def put_back(self) -> None:
        """It waits once more, after its device was lost."""
        self.batch, self.at, self.placed, self.queued = None, 0, False, True

    def results(self) -> Results:
        """The results of the request, or its error.

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
        timekeeper: The request whose caller ends it when it is due; None where a thread of the
            pool does.
        runner: What runs it: a request, in its caller's thread, or a thread of the pool.
        pending: Its run, where that goes on by itself.
        found: The results of all.
        over: Whether it was run; ``done``: whether its requests were told.
    """

    def __init__(
        self,
        mine: ModelCopy,
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
        self.timekeeper: Request | None = None
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
        self.copy.told.discard(self)

    def compute(self, size: int) -> None:
        """Compute results, by the model for ``size`` items, which takes all; or by one twice as
        large where rows are already.

        Args:
            size: The batch of the model; 0 where the only request is run as a call of its own.

        Raises:
            InputError, DeviceError: as `Model.__call__`.
        """
        requests, models = self.requests, self.copy.models
        if all(request.left for request in requests):
            return
        if not size:
            (first,) = requests
            first.found = models[max(models)](*first.given, **first.named)
            return
        if self.rows is not None and size <= self.size <= 2 * size:
            size = self.size
        elif self.rows is not None:
            models[self.size]._is_filled = False  # noqa: SLF001  (with rows that no run has seen)
        model = models[size]
        parts = [request.given for request in requests]
        placed = [size == self.size and request.placed for request in requests]
        try:
            self.found = model._together(parts, placed)  # noqa: SLF001
        except InputError:
            # Something about the numbers of one of them (an index that is out of range): the others
            # are not to suffer.
            if len(requests) == 1:
                raise
            for request in requests:
                try:
                    found = model._together([request.given], [False])  # noqa: SLF001
                    request.found = Results(found, self.names)
                except InputError as error:
                    request.fail(error, shared=False)

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


class ModelCopy:
    """A copy of the model, and the thread that runs its batches where their callers do not.

    Attributes:
        models: By the batch that they are made for.
        next_models: What it gets when it is free; None for nothing.
        device: The number of its device.
        is_left_out: Whether it gets no requests, since its device is lost.
        batch: What it gathers or runs.
        told: Batches that are over, while their callers and futures are told.
        until: When its thread, which waits, looks by itself.
    """

    def __init__(self, models: Mapping[int, Model], device: int, lock: threading.RLock) -> None:
        self.models, self.device = models, device
        self.next_models: Mapping[int, Model] | None = None
        self.is_left_out = False
        self.batch: Batch | None = None
        self.told: set[Batch] = set()
        self.until = 0.0
        self._changed = threading.Condition(lock)

    @property
    def gave_way(self) -> bool:
        """Whether the CPU took over from its device."""
        return any(model._gave_way for model in self.models.values())  # noqa: SLF001

    def take_next(self) -> None:
        """Have other models from now on; under the lock."""
        assert self.next_models is not None
        self.models, self.next_models = self.next_models, None

    def requests(self) -> list[Request]:
        """Those that it has, and those that are told."""
        batches = [self.batch, *self.told]
        return [request for batch in batches if batch is not None for request in batch.requests]

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


def refuse(requests: Sequence[Request]) -> None:
    """End requests in the error that their pool is closed."""
    for request in requests:
        request.begin()
        request.error = StateError("this pool is closed")
        if request.batch is None and not request.left:
            request.tell()
