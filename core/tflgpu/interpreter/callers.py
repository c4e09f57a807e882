"""`Pool`: a model for many callers, on one device or several."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy.typing as npt

from tflgpu.blame import shown
from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.forks import ForkWatch, OfProcess
from tflgpu.delegate import GpuDelegate
from tflgpu.errors import OptionError, StateError, UnsupportedError
from tflgpu.interpreter.arguments import timeout_of
from tflgpu.interpreter.gather import Gatherer, batches_of, busy, check_deadline
from tflgpu.interpreter.invocation import answer
from tflgpu.interpreter.model import Model, Results
from tflgpu.options.keywords import OptionKeywords, Self, Unpack
from tflgpu.options.kinds import Count

T = TypeVar("T")

#: A number of copies beyond it is a mistake, which would take all memory before it was seen.
_MOST_COPIES = 1024


class Pool(OfProcess):
    """A `.tflite` model that many threads, or coroutines, call at once.

        with tflgpu.Pool("mobilenet.tflite", size=3) as pool:
            (scores,) = pool(image)                # from any thread
            future = pool.submit(image)            # a concurrent.futures.Future
            (scores,) = await pool.run(image)      # from a coroutine

    It has several copies of the model, which share their device, so that one copies inputs while
    another computes. A call takes a copy that is free; where there is none callers wait, and are
    served in the order in which they came. Every call is answered with its own results, or with the
    error that its own run ended in.

    With ``batch=8`` calls that come within a deadline are gathered and run together, padded to the
    smallest batch that was compiled.

    Only models without state: which copy serves a call is chance.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        size: int = 2,
        devices: Sequence[int | str] | None = None,
        delegates: Sequence[GpuDelegate] | None = None,
        batch: int = 1,
        deadline: float = 0.002,
        sizes: Sequence[int] | None = None,
        saved: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Read a model and make its copies ready to run.

        Args:
            model: Path of a `.tflite` file, or what is in it.
            size: Copies on each device; they share its weights, and each has tensors of its own.
            devices: As the option ``device``: one delegate for each, of the pool's own.
            delegates: Or delegates of the caller's, who closes them after the pool.
            batch: Most items of requests that are run together; 1 gathers none.
            deadline: Seconds that a request waits for others to come. A batch that is full is run
                at once, and so is what has come while all copies were busy.
            sizes: The batches that are compiled, ``batch`` among them; every copy has its model once
                for each. None is 1, 2, 4 and so on to ``batch``.
            saved: As `GpuDelegate` takes it; for a ``batch`` of 1.
            progress: As `GpuDelegate` takes it.
            options: Those of `DelegateOptions`. With neither ``devices`` nor ``delegates`` they are
                what `Model` makes of them.

        Raises:
            OptionError: both devices and delegates, or none of them; devices and the option ``device``;
                options beside delegates; too many copies; or an unknown option.
            UnsupportedError: the model keeps state from run to run, an operator runs nowhere, or a
                batch of a model that does not compute items apart from one another.
            ModelError, DeviceError: as `Model`.
        """
        count = Count().read("size", size)
        if count > _MOST_COPIES:
            raise OptionError(
                f"size is {shown(count)}; at most {_MOST_COPIES} copies are made on a device, each of "
                "which has tensors of its own"
            )
        batches = batches_of(batch, sizes)
        check_deadline(deadline)
        # A loan may end wherever objects are collected, under this lock, too.
        self._lock, self._ending = threading.RLock(), threading.RLock()
        self._free: deque[Model] = deque()
        self._waiting: deque[_Waiter] = deque()
        self._closed = False
        self._own: list[GpuDelegate] = []
        self._models: list[Model] = []
        self._gather: Gatherer | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._back = threading.Condition(self._lock)
        self._watch = ForkWatch(self, Pool._renew)
        try:
            own: dict[str, Any] = {"saved": saved, "progress": progress, **options}
            own = {name: value for name, value in own.items() if value is not None}
            given = self._delegates(devices, delegates, own)
            # In turn, so that calls that come one by one go to all devices.
            copies: list[dict[int, Model]] = []
            for delegate in [*given] * count:
                said: Any = own if delegate is None else {"delegate": delegate}
                # The largest first: what is too much for the device is known before the others are made.
                made: list[Model] = []
                for items in reversed(batches):
                    self._models.append(Model(model, batch=items, **said))
                    made.insert(0, self._models[-1])
                    _check_state(made[0])
                copies.append(dict(zip(batches, made, strict=True)))
        except BaseException:
            self._release()
            raise
        if batches != [1]:
            self._gather = Gatherer(copies, deadline)
            return
        self._free.extend(self._models)
        self._workers = ThreadPoolExecutor(len(self._models), "tflgpu-pool")

    def __call__(
        self, *arrays: npt.ArrayLike, timeout: float | None = None, **named: npt.ArrayLike
    ) -> Results:
        """Run on one array per input, as `Model.__call__`.

        Args:
            arrays: By position.
            timeout: Seconds to wait for a copy of the model that is free; None is no limit. (How
                long a run may take is the option ``run_timeout``.)
            named: By name.

        Raises:
            BusyError: none was free in time.
            StateError: the pool is closed, or was made before this process was forked.
            ArgumentError: ``timeout`` is neither a number nor None.
            InputError, DeviceError: as `Model.__call__`.
        """
        timeout = timeout_of(timeout)
        if self._gather is not None:
            self._check_open()
            return self._gather.call(arrays, named, timeout)
        loan = self._borrow(timeout)
        try:
            return loan.model(*arrays, **named)
        finally:
            loan.end()

    def submit(
        self, *arrays: npt.ArrayLike, timeout: float | None = None, **named: npt.ArrayLike
    ) -> Future[Results]:
        """The same by a thread of the pool's (with a ``timeout``, by one of its own). The arrays are
        read until the future is done.

        Raises:
            StateError: the pool is closed, or was made before this process was forked.
            ArgumentError: ``timeout`` is neither a number nor None.
        """
        self._check_open()
        seconds = timeout_of(timeout)
        call = partial(self, *arrays, timeout=seconds, **named)
        if seconds is not None:
            waiting: Future[Results] = Future()
            threading.Thread(
                target=answer, args=(waiting, call), name="tflgpu-pool", daemon=True
            ).start()
            return waiting
        if self._gather is not None:
            return self._gather.submit(arrays, named)
        workers = self._workers
        assert workers is not None
        try:
            return workers.submit(call)
        except RuntimeError:  # it was closed just now
            raise StateError("this pool is closed") from None

    async def run(
        self, *arrays: npt.ArrayLike, timeout: float | None = None, **named: npt.ArrayLike
    ) -> Results:
        """The same for a coroutine, while others have their turn.

        Raises:
            BusyError, StateError, ArgumentError, InputError, DeviceError: as `__call__`.
        """
        import asyncio  # slow to import, and few wait like this

        return await asyncio.wrap_future(self.submit(*arrays, timeout=timeout, **named))

    @property
    def reports(self) -> tuple[DelegationReport, ...]:
        """What runs where, for each copy that is free at the moment; with a ``batch``, for each size
        of each copy."""
        if self._gather is not None:
            return tuple(model.report for model in self._models)
        with self._lock:
            free = list(self._free)
        return tuple(model.report for model in free)

    @property
    def runs(self) -> dict[int, int]:
        """With a ``batch``: how many runs there were, by the number of items that were gathered."""
        return {} if self._gather is None else self._gather.runs

    def close(self) -> None:
        """Refuse calls from now on, wait for those that are being served, and release everything;
        twice is harmless. Callers that wait for a copy are refused too."""
        if self._watch.inherited:
            return
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().serve(None)
            while self._gather is None and len(self._free) < len(self._models):
                self._back.wait()
        if self._gather is not None:
            self._gather.close()
        if self._workers is not None:
            self._workers.shutdown()
        with self._ending:  # of several that close it, one has it to do
            self._release()

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        models = list(self._models)
        return f"<Pool: {len(models)} of {models[0]!r}>" if models else "<Pool: closed>"

    # Inside

    def _renew(self) -> None:
        """In a child, which makes a pool of its own."""
        self._lock, self._ending = threading.RLock(), threading.RLock()

    def _delegates(
        self,
        devices: Sequence[int | str] | None,
        delegates: Sequence[GpuDelegate] | None,
        options: dict[str, Any],
    ) -> Sequence[GpuDelegate | None]:
        if delegates is not None:
            if devices is not None or options:
                raise OptionError("give either delegates, or devices and options, not both")
            return _some(delegates)
        if devices is None:
            return [None]
        if "device" in options:
            raise OptionError("give either devices, or the option device, not both")
        for device in _some(devices):
            self._own.append(GpuDelegate(device=device, **options))
        return list(self._own)

    def _check_open(self) -> None:
        self._watch.check_inherited("this pool's device")
        if self._closed:
            raise StateError("this pool is closed")

    def _borrow(self, timeout: float | None) -> _Loan:
        self._check_open()
        with self._lock:
            self._check_open()
            if self._free and not self._waiting:
                return _Loan(self._free.popleft(), self._give_back)
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            came = waiter.there.wait(timeout)
        except BaseException:
            self._leave(waiter)
            if waiter.model is not None:
                self._give_back(waiter.model)
            raise
        if not came:
            self._leave(waiter)
            if not waiter.there.is_set():
                raise busy(timeout)
        if waiter.model is None:
            raise StateError("this pool is closed")
        return _Loan(waiter.model, self._give_back)

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _give_back(self, model: Model) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().serve(model)
            else:
                self._free.append(model)
                self._back.notify_all()

    def _release(self) -> None:
        _close_all(self._models)
        self._free.clear()
        _close_all(self._own)


def _close_all(opened: list[Any]) -> None:
    """From the last on. What a signal interrupts, or its handler does in between, is done once."""
    while opened:
        last = opened[-1]
        last.close()
        if opened and opened[-1] is last:
            opened.pop()


def _some(given: Sequence[T]) -> list[T]:
    """As a list, which is not empty."""
    found = list(given)
    if not found:
        raise OptionError("a pool has at least one device")
    return found


def _check_state(model: Model) -> None:
    if model.keeps_state:
        raise UnsupportedError(
            "the model keeps state from run to run, and the calls of a pool are served by several "
            "copies; use a Model, or one for each caller"
        )


class _Loan:
    """A copy of the model that a caller has. Should a signal end the caller before it gives it back,
    it comes back with the end of this object."""

    def __init__(self, model: Model, give_back: Callable[[Model], None]) -> None:
        self.model = model
        self._give_back: Callable[[Model], None] | None = give_back

    def end(self) -> None:
        """Give it back; once."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self.model)

    def __del__(self) -> None:
        self.end()


class _Waiter:
    """A caller in the queue. What it waits for is handed over, so that nobody else can take it."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.model: Model | None = None

    def serve(self, model: Model | None) -> None:
        """Give it a copy of the model; None where there is no use in waiting."""
        self.model = model
        self.there.set()
