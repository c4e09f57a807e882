"""`Pool`: a model for many callers, on one device or several."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy.typing as npt

from tflgpu.backend_kit.forks import ForkWatch, OfProcess
from tflgpu.backend_kit.run_guard import Closable, RunGuard
from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import OptionError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.arguments import timeout_of
from tflgpu.interpreter.gather import Gatherer
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.interpreter.invocation import answer
from tflgpu.interpreter.model import Model, Results
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.options.kinds import WholeNumber

T = TypeVar("T")

#: A number of copies beyond it is a mistake, which would take all memory before it was seen.
_MOST_COPIES = 1024
#: Seconds that a request may wait for others, at most.
_LONGEST = 60.0


class Pool(Closable, OfProcess):
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
            sizes: The batches that are compiled, ``batch`` among them; every copy has its model
                once for each. None is 1, 2, 4 and so on to ``batch``.
            saved: As `GpuDelegate` takes it; for a ``batch`` of 1.
            progress: As `GpuDelegate` takes it.
            options: Those of `DelegateOptions`. With neither ``devices`` nor ``delegates`` they are
                what `Model` makes of them.

        Raises:
            OptionError: both devices and delegates, or none of them; devices and the option
                ``device``; options beside delegates; too many copies; or an unknown option.
            UnsupportedError: the model keeps state from run to run, an operator runs nowhere, or a
                batch of a model that does not compute items apart from one another.
            ModelError, DeviceError: as `Model`.
        """
        count = WholeNumber().read("size", size)
        if count > _MOST_COPIES:
            raise OptionError(
                f"size is {shown(count)}; at most {_MOST_COPIES} copies are made on a device, "
                "each of which has tensors of its own"
            )
        batches = _batches(batch, sizes)
        _check_deadline(deadline)
        self._guard = RunGuard("this pool")
        self._own: list[GpuDelegate] = []
        self._models: list[Model] = []
        self._watch = ForkWatch(self)
        try:
            own: dict[str, Any] = {"saved": saved, "progress": progress, **options}
            own = {name: value for name, value in own.items() if value is not None}
            given = self._delegates(devices, delegates, own)
            # In turn, so that calls that come one by one go to all devices.
            copies: list[dict[int, Model]] = []
            for delegate in [*given] * count:
                said: Any = own if delegate is None else {"delegate": delegate}
                # The largest first: what is too much for the device is known before the others are
                # made.
                made: list[Model] = []
                for items in reversed(batches):
                    self._models.append(Model(model, batch=items, **said))
                    made.insert(0, self._models[-1])
                    _check_state(made[0])
                copies.append(dict(zip(batches, made, strict=True)))
        except BaseException:
            self._release()
            raise
        self._gather = Gatherer(copies, deadline, self._guard)
        weakref.finalize(self, self._gather.refuse)

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
        if timeout is not None:
            timeout = timeout_of(timeout)
        if self._watch.inherited:
            self._watch.check_inherited("this pool's device")
        with self._guard.call:
            return self._gather.call(arrays, named, timeout)

    def submit(
        self, *arrays: npt.ArrayLike, timeout: float | None = None, **named: npt.ArrayLike
    ) -> Future[Results]:
        """The same by a thread of the pool's (with a ``timeout``, by one of its own). The arrays
        are read until the future is done.

        Raises:
            StateError: the pool is closed, or was made before this process was forked.
            ArgumentError: ``timeout`` is neither a number nor None.
        """
        self._watch.check_inherited("this pool's device")
        seconds = timeout_of(timeout)
        if seconds is not None:
            future: Future[Results] = Future()
            call = partial(self, *arrays, timeout=seconds, **named)
            work = partial(answer, future, call)
            threading.Thread(target=work, name="tflgpu-pool-submit", daemon=True).start()
            return future
        with self._guard.call:
            return self._gather.submit(arrays, named)

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
        """Reports for each copy of the model that is free now; with a ``batch``, for each of its
        sizes."""
        free = [model for copy in list(self._gather.free) for model in copy.models.values()]
        return tuple(model.report for model in free)

    @property
    def runs(self) -> dict[int, int]:
        """With a ``batch``: how many runs there were, by the number of items that were gathered."""
        return self._gather.runs

    def close(self) -> None:
        """Refuse calls from now on, those that wait for a copy among them, wait for those that are
        being served, and release everything; twice is harmless. Inside of a call of the same thread
        (by a signal's handler, or by a future's callback) it returns at once, and takes effect at
        the end of that call; a handler that comes in a method of one of its futures may leave it to
        a thread."""
        if self._watch.inherited:
            return
        if self._gather.is_in_a_future:
            threading.Thread(target=self.close, name="tflgpu-pool-close").start()
        else:
            self._gather.refuse()
            super().close()

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

    def _close(self) -> None:
        self._guard.close(self._shut)
        self._gather.join()

    def _shut(self) -> None:
        self._gather.close()
        self._release()

    def _release(self) -> None:
        _close_all(self._models)
        _close_all(self._own)


def _close_all(opened: list[Any]) -> None:
    """From the last on. What a signal interrupts is done when it is called again."""
    while opened:
        opened[-1]._close()  # noqa: SLF001
        opened.pop()


def _some(given: Sequence[T]) -> list[T]:
    """The devices as a list that is not empty."""
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


def _batches(batch: Any, sizes: Sequence[int] | None) -> list[int]:
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


def _check_deadline(value: Any) -> None:
    """Check that a deadline is a number of seconds.

    Raises:
        OptionError: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LONGEST:
        raise OptionError(f"deadline is {shown(value)}; it is seconds, from 0 to {_LONGEST:g}")
