"""Runs in flight: several of a model at a time, each with inputs and results of its own.

    invoke_async -> a lane that is free -> inputs copied -> submitted -> Invocation
                    (another is opened, up to the most; then the oldest run is waited for)

A lane is the model once more on the device: buffers, recordings, host arrays. Where the model is
one part on the device a run is submitted and goes on by itself; where parts of it run on the CPU,
or where the options ask for more than a plain run, a thread of the lane makes it.

A model that keeps state has one lane: its runs follow each other in the order of the calls, and the
interpreter has the state before and after each of them. What several graphs keep (resource
variables, state in bodies of loops) is in the interpreter's store, which its lane works on too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tflgpu.backend_kit.forks import Holder
from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.backend_kit.waiting import manner
from tflgpu.contract.pending import Pending
from tflgpu.errors import InputError, StateError
from tflgpu.errors.blame import attempt
from tflgpu.interpreter.arguments import timeout_of
from tflgpu.interpreter.session_opener import SessionOpener
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.ir.dtypes import Array

T = TypeVar("T")


class Invocation:
    """A run that `Interpreter.invoke_async` began. Any thread may ask it."""

    def __init__(self, lane: RunLane) -> None:
        self._lane = lane
        self._results: list[Array] | None = None  # one for each output; a tensor may be several
        self._error: BaseException | None = None
        self._run: _Run | None = None

    def done(self) -> bool:
        """Whether `wait` would return, or raise, without waiting for the device."""
        run = self._run
        return run is None or (not self._lane.guard.is_inside and run.done())

    def wait(self, timeout: float | None = None) -> bool:
        """Return when the results are there: True; or after ``timeout`` seconds: False.

        Raises:
            ArgumentError: ``timeout`` is neither a number nor None.
            DeviceError: the run failed (the option ``on_error`` says what is tried before).
            StateError: the interpreter was forked away meanwhile.
        """
        timeout = timeout_of(timeout)
        if self._run is not None and not self._lane.collect(self, timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def results(self) -> list[Array]:
        """The outputs in the model's order, for the caller to keep and change; waits for them.

        Raises:
            DeviceError, StateError: as `wait`.
        """
        self.wait()
        assert self._results is not None
        return list(self._results)

    def get_tensor(self, tensor_index: int) -> Array:
        """An output by its tensor's index; waits for it.

        Raises:
            InputError: no output of the model has that index.
            DeviceError, StateError: as `wait`.
        """
        self.wait()
        assert self._results is not None
        outputs = self._lane.subgraph.info.outputs
        if tensor_index not in outputs:
            known = ", ".join(map(str, outputs))
            raise InputError(f"tensor {tensor_index} is no output; outputs are {known}")
        return self._results[outputs.index(tensor_index)]

    def __await__(self) -> Generator[Any, None, list[Array]]:
        """`results`, while other coroutines have their turn."""
        return self._awaited().__await__()

    async def _awaited(self) -> list[Array]:
        import asyncio  # slow to import, and few wait like this

        run = self._run
        if run is not None and not self.done():
            # Of a run that is cancelled here nothing but this wait ends.
            await asyncio.wait([asyncio.wrap_future(self._lane.over(self, run))])
        return self.results()

    def _sleep(self) -> None:
        """Wait in a thread that no signal comes to. What the run ended in is told later."""
        manner.asleep = manner.by_driver = True
        try:
            self._lane.collect(self)
        finally:
            manner.asleep = manner.by_driver = False


class _Run:
    """A run in flight, submitted or in a thread."""

    def __init__(self, pending: Pending | None, future: Future[None] | None) -> None:
        #: ``future`` is of the thread that makes the run; None where it goes on by itself.
        self._pending, self.future = pending, future

    def done(self) -> bool:
        if self.future is not None:
            return self.future.done()
        assert self._pending is not None
        return self._pending.done()

    def finish(self, subgraph: Subgraph, timeout: float | None) -> bool:
        """Wait; False where it took longer. Raises what went wrong."""
        if self.future is None:
            assert self._pending is not None
            return subgraph.finish(self._pending, timeout)
        try:
            self.future.result(timeout)
        except (TimeoutError, FutureTimeoutError):
            if not self.future.done():
                return False
            self.future.result()
        return True


class RunLane:
    """The model once more, with at most one run in flight."""

    def __init__(self, subgraph: Subgraph, workers: ThreadPoolExecutor) -> None:
        self.subgraph = subgraph
        self._workers = workers
        self.flight: Invocation | None = None
        self.guard = RunGuard("this run")
        self.after: Callable[[Subgraph], None] = lambda _: None

    def begin(self) -> Invocation:
        """Submit a run on what the inputs hold; a worker makes what cannot be submitted."""
        flight = Invocation(self)
        pending = self.subgraph.begin()
        if pending is not None:
            flight._run = _Run(pending, None)  # noqa: SLF001
            self.flight = flight
            return flight
        # Known before it begins: a signal may come before `submit` returns.
        future: Future[None] = Future()
        flight._run = _Run(None, future)  # noqa: SLF001
        self.flight = flight
        try:
            self._workers.submit(self._perform, future)
        except BaseException:
            if future.cancel():
                self.flight = flight._run = None  # noqa: SLF001
            raise
        return flight

    def over(self, flight: Invocation, run: _Run) -> Future[None]:
        """What is done, without an error, when a run in flight is over."""
        found: Future[None] = Future()
        if run.future is not None:
            run.future.add_done_callback(lambda _: found.set_result(None))
            return found
        try:
            return self._workers.submit(flight._sleep)  # noqa: SLF001
        except RuntimeError:  # closed by another thread, which has waited for all runs
            found.set_result(None)
            return found

    def collect(self, flight: Invocation, timeout: float | None = None) -> bool:
        """See a run to its end and give the invocation what came of it; False where that took
        longer than ``timeout``."""
        if not self.guard.enter_within(timeout):
            return False
        try:
            run = flight._run  # noqa: SLF001
            if run is None:
                return True
            try:
                if not run.finish(self.subgraph, timeout):
                    return False
                outputs = self.subgraph.info.outputs
                flight._results = [self.subgraph.get(i) for i in outputs]  # noqa: SLF001
                self.after(self.subgraph)
            except Exception as error:  # noqa: BLE001
                # Whatever ended the run, a plugin's mistake too, is its caller's; Ctrl-C is not.
                flight._error = error  # noqa: SLF001
                attempt(self.after, self.subgraph)
            self.flight = flight._run = None  # noqa: SLF001
            return True
        finally:
            self.guard.leave()

    def _perform(self, future: Future[None]) -> None:
        with self.guard.call:
            answer(future, self.subgraph.run)


def answer(future: Future[T], action: Callable[[], T]) -> None:
    """Make a run, unless it was cancelled, and let its future have what came of it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        found = action()
    except BaseException as error:  # noqa: BLE001  (the future has it)
        future.set_exception(error)
    else:
        future.set_result(found)


def _keep_state(main: Subgraph, subgraph: Subgraph) -> None:
    for index, state in subgraph.variables.items():
        np.copyto(main.variables[index], state)


class Lanes(Holder):
    """All lanes of an interpreter's main subgraph.

    Args:
        main: What the interpreter itself runs.
        most: Most lanes.
        opener: Opens their sessions.
    """

    def __init__(self, main: Subgraph, most: int, opener: SessionOpener) -> None:
        session = main.session
        by_flow = session is not None and session.comes_by_run
        self._main = main
        self._stored = by_flow and opener.keeps_state(main.index)
        self._copied = bool(main.variables) and not self._stored
        self._most = 1 if self._stored or self._copied else most
        self._lanes: list[RunLane] = []  # the one whose run is the oldest first
        self._workers = ThreadPoolExecutor(self._most, "tflgpu-invoke")
        self._shapes = main.resized
        self._values: dict[int, Array] = {}  # of inputs, by tensor
        self._edition: object = None
        self.belongs_to_process()

    def begin(self, inputs: Mapping[int, Any], make: Callable[[], Subgraph]) -> Invocation:
        """A run on these inputs; those that are not named are as in the interpreter. ``make`` gives
        another subgraph like its main one, at the same shapes, ready to run."""
        lane = self._free(make)
        with lane.guard:
            subgraph = lane.subgraph
            for index in self._main.info.inputs:
                subgraph.set(index, inputs[index] if index in inputs else self._value(index))
            if self._copied:
                for index, state in self._main.variables.items():
                    np.copyto(subgraph.variables[index], state)
            flight = lane.begin()
        self._lanes.remove(lane)
        self._lanes.append(lane)
        return flight

    @property
    def fits(self) -> bool:
        """Whether it is still of the interpreter's shapes, and of this process."""
        return not self.inherited and self._shapes == self._main.resized

    def settle_state(self) -> None:
        """See to it that the interpreter has the state after all runs in flight."""
        if self._stored or self._main.variables:
            self._collect_all()

    def close(self) -> None:
        """Wait for what is in flight, whose results stay with who has the invocations, and release
        all lanes."""
        if self.inherited:
            return
        self._collect_all()
        while self._lanes:
            self._lanes[-1].subgraph.release()
            self._lanes.pop()
        self._workers.shutdown(wait=False)  # one of them may be what closes

    def after_fork(self) -> None:
        """The runs are the parent's."""
        super().after_fork()
        for lane in self._lanes:
            if lane.flight is not None:
                lane.flight._error = StateError(  # noqa: SLF001
                    "this run is in flight in the process that this one was forked from"
                )
                lane.flight._run = None  # noqa: SLF001

    # Inside

    def _value(self, index: int) -> Array:
        """What an input of the interpreter has. Reading that may be slow, and is done once for each
        time that it was set."""
        edition = self._main.edition
        if edition is None or edition != self._edition:
            self._values, self._edition = {}, edition
        if index not in self._values:
            self._values[index] = np.array(self._main.value(index))
        return self._values[index]

    def _collect_all(self) -> None:
        for lane in self._lanes:
            flight = lane.flight
            if flight is not None:
                lane.collect(flight)

    def _free(self, make: Callable[[], Subgraph]) -> RunLane:
        for lane in self._lanes:
            flight = lane.flight
            if flight is None or (flight.done() and lane.collect(flight)):
                return lane
        if len(self._lanes) < self._most:
            lane = RunLane(make(), self._workers)
            if self._copied:
                lane.after = partial(_keep_state, self._main)
            self._lanes.append(lane)
            return lane
        lane = self._lanes[0]
        flight = lane.flight
        if flight is not None:
            lane.collect(flight)
        return lane
