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
from tflgpu.errors import OptionError, SignatureError, StateError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.arguments import timeout_of
from tflgpu.interpreter.gather import Gatherer
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.interpreter.invocation import answer
from tflgpu.interpreter.model import DEVICE_OPTIONS, Model, Results
from tflgpu.interpreter.named_tensors import NamedTensor
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

    With several devices, one that is lost is left out, and others answer the requests that it had.
    The last one stays, also where it is lost: a request gets the `DeviceLostError`, and the next
    opens the device anew.
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
        queue_limit: int | None = None,
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
            queue_limit: Most requests that wait for a copy that is free; one more is refused. None
                is any number.
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
        self._batches = _batches(batch, sizes)
        _check_deadline(deadline)
        if queue_limit is not None:
            queue_limit = WholeNumber().read("queue_limit", queue_limit)
        self._guard = RunGuard("this pool")
        self._own: list[GpuDelegate] = []
        self._models: list[Model] = []
        self._watch = ForkWatch(self)
        self._changing = threading.Lock()
        try:
            own: dict[str, Any] = {"saved": saved, "progress": progress, **options}
            own = {name: value for name, value in own.items() if value is not None}
            given = self._delegates(devices, delegates, own)
            # In turn, so that calls that come one by one go to all devices.
            self._places: list[Any] = [
                own if delegate is None else {"delegate": delegate} for delegate in given
            ] * count
            copies = [self._copy(model, place, self._models) for place in self._places]
        except BaseException:
            self._release()
            raise
        numbers = [*range(len(given))] * count
        self._gather = Gatherer(copies, deadline, self._guard, numbers, queue_limit)
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
            QueueFullError: ``queue_limit`` requests wait already.
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
            QueueFullError: ``queue_limit`` requests wait already; with a ``timeout`` the future
                has the error.
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

    def replace(self, model: str | os.PathLike[str] | bytes | bytearray | memoryview) -> None:
        """Answer requests by another model from now on, without refusing any.

        The new model is opened beside the old one, on the same devices, with the same options; both
        take memory until this returns. Requests that wait meanwhile are answered by either of them,
        those that come later by the new one. A device that was left out stays so.

        Args:
            model: Path of a `.tflite` file, or what is in it. Its inputs and outputs have the
                names, types and shapes of the old one's, in the same order.

        Raises:
            SignatureError: they do not; the old model stays.
            ModelError, OptionError, SavedModelError, DeviceError, UnsupportedError: as for a new
                pool; the old model stays.
            StateError: the pool is closed, or in the middle of a call of the same thread.
        """
        self._watch.check_inherited("this pool's device")
        self._gather.check_outside()
        with self._guard.call, self._changing:
            if self._guard.closed:
                raise StateError("this pool is closed")
            old, new = list(self._models), list[Model]()
            try:
                copies = [
                    found.models if found.is_left_out else self._copy(model, place, new)
                    for place, found in zip(self._places, self._gather.copies, strict=True)
                ]
                _check_signature(old[0], new[0])
                self._models.extend(new)
            except BaseException:
                _close_all(new)
                raise
            self._gather.replace(copies)
            kept = [each for copy in copies for each in copy.values()]
            self._models[:] = kept
            _close_all([each for each in old if each not in kept])

    @property
    def inputs(self) -> tuple[NamedTensor, ...]:
        """Name, type and shape of each input, as `Model.inputs`."""
        return self._model.inputs

    @property
    def outputs(self) -> tuple[NamedTensor, ...]:
        """Name, type and shape of each output, as `Model.outputs`."""
        return self._model.outputs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: those of the first signature, where there is one."""
        return self._model.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._model.output_names

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

    @property
    def _model(self) -> Model:
        """One of the models, for what is the same for all: of the largest batch.

        Raises:
            StateError: the pool is closed.
        """
        models = list(self._models)
        if not models:
            raise StateError("this pool is closed")
        return models[0]

    def _copy(self, model: Any, place: Any, models: list[Model]) -> dict[int, Model]:
        """A copy of a model for each batch, which are added to the list as they are opened."""
        # The largest first: what is too much for the device is known before the others are made.
        made: dict[int, Model] = {}
        for items in reversed(self._batches):
            made[items] = Model(model, batch=items, **place)
            models.append(made[items])
            _check_state(made[items])
        return made

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
        if devices is None and DEVICE_OPTIONS.isdisjoint(options):
            return [None]
        if devices is None:
            self._own.append(GpuDelegate(**options))
            return list(self._own)
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
        with self._changing:
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


def _check_signature(old: Model, new: Model) -> None:
    """Check that a model has the inputs and outputs of another.

    Raises:
        SignatureError: it has not.
    """
    for side, was, now in (
        ("inputs", old.inputs, new.inputs),
        ("outputs", old.outputs, new.outputs),
    ):
        have, should = (", ".join(each.described for each in tensors) for tensors in (now, was))
        if have != should:
            raise SignatureError(
                f"the new model has the {side} {have}, and that of this pool {should}; they have "
                "to be the same: make a pool of its own for the new model"
            )


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
