"""Times several ways to run a model by turns, so that what changes on the machine meets all of
them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path

import attrs
import numpy as np

from tflgpu.errors import TflgpuError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tools.check_outputs import Gap, gap_of
from tflgpu.tools.contestants import Contestant, Inputs, OnTflgpu, OpenedRuntime
from tflgpu.tools.runs import random_inputs


class ProcessorTour:
    """Moves this thread from one processor to the next; `end` brings back what was.

    How long a call takes depends on the processor that its thread is on: one that serves the
    device's interrupts, or whose sibling is busy, takes longer to hear of a run's end. A thread
    mostly stays where it is, so that a process would tell of one processor only.

    Where a system cannot move threads, or there is only one processor, nothing moves.
    """

    def __init__(self) -> None:
        allowed = getattr(os, "sched_getaffinity", None)
        self._home: set[int] = set() if allowed is None else allowed(0)
        self._order = sorted(self._home)
        self.moves = len(self._order) > 1

    def move(self, turn: int) -> None:
        """Move to the processor of a turn."""
        if self.moves:
            # One may have been taken from the process meanwhile.
            with suppress(OSError):
                os.sched_setaffinity(0, {self._order[turn % len(self._order)]})

    def end(self) -> None:
        """Let the thread be where it may."""
        if self.moves:
            with suppress(OSError):
                os.sched_setaffinity(0, self._home)


#: Sets of inputs that are used in turn, so that no contestant sees the same bytes twice in a row.
_SETS = 3
#: Calls of a block that do not count: caches and clocks are still those of the contestant before,
#: or of another processor.
_DROPPED = 2
#: Calls that a block has at least, and from how many on some of them are dropped.
_FEWEST, _MANY = 3, 10
#: Seconds that a block of concurrent calls takes at least, since it begins and ends with fewer.
_CONCURRENT_SECONDS = 0.25

#: Told what is done, and which share of it is over.
Progress = Callable[[str, float], object]


@attrs.frozen
class Settings:
    """How a model is called and for how long.

    Attributes:
        batch: Items of a run; with several threads, the most that a pool gathers.
        in_flight: Runs under way at a time; with several threads, the pool's copies of the model.
        threads: Threads that call.
        duration: Seconds for which each contestant is timed.
        warm_up: Seconds for which each is run before, since the clocks of a GPU rise slowly.
        block: Calls of a contestant before it is the next one's turn.
        seed: Of the inputs.
    """

    batch: int = 1
    in_flight: int = 1
    threads: int = 1
    duration: float = 3.0
    warm_up: float = 1.0
    block: int = 15
    seed: int = 0

    @property
    def items(self) -> int:
        """Items of a call."""
        return 1 if self.threads > 1 else self.batch

    @property
    def concurrent(self) -> bool:
        """Whether calls overlap."""
        return self.in_flight > 1 or self.threads > 1

    def __str__(self) -> str:
        if self.threads > 1:
            gathered = f", up to {self.batch} items gathered" if self.batch > 1 else ""
            return f"{self.threads} threads, {self.in_flight} copies of the model{gathered}"
        items = "" if self.batch == 1 else f", {self.batch} items a run"
        if self.in_flight > 1:
            return f"one thread, {self.in_flight} runs in flight{items}"
        return f"one call at a time{items}"


@attrs.define
class Racer:
    """A contestant, and what was measured of it.

    Attributes:
        opened: None before it is opened, and where that failed.
        error: What ended it; None while it goes on.
        first: Seconds of the first run.
        outputs: For each set of inputs.
        times: Seconds of each call that counts.
        steps: Of calls that do not overlap: seconds for inputs, run and outputs.
        seconds: All blocks together, calls that do not count left out where none overlap.
        count: Calls in those.
        spent: Seconds for which it was timed.
        calls: Of a block.
    """

    contestant: Contestant
    opened: OpenedRuntime | None = None
    error: Exception | None = None
    first: float | None = None
    outputs: list[list[Array]] = attrs.Factory(list)
    times: list[float] = attrs.Factory(list)
    steps: list[tuple[float, float, float]] = attrs.Factory(list)
    seconds: float = 0.0
    count: int = 0
    spent: float = 0.0
    calls: int = 1
    _turn: int = 0

    @property
    def failure(self) -> str:
        """Why it did not finish; "" where it did."""
        if self.error is None:
            return ""
        text = " ".join(str(self.error).split())
        return (
            text if isinstance(self.error, TflgpuError) else f"{type(self.error).__name__}: {text}"
        )

    def open(self, model: Path, settings: Settings, sets: Sequence[Inputs]) -> None:
        """Open it, and run each set of inputs once."""
        self.opened = self.contestant.open(model, settings.items)
        for inputs in sets:
            start = time.perf_counter()
            self.outputs.append(run(self.opened, inputs))
            self.first = self.first or time.perf_counter() - start

    def block(self, settings: Settings, sets: Sequence[Inputs], calls: int, dropped: int) -> None:
        """Make so many calls and keep the times of those behind the first ``dropped``."""
        assert self.opened is not None
        start, opened = time.perf_counter(), self.opened
        if settings.concurrent and isinstance(opened, OnTflgpu):
            if settings.threads > 1:
                made = opened.by_threads(
                    settings.threads, settings.in_flight, settings.batch, sets, calls
                )
            else:
                made = opened.in_flight(settings.in_flight, sets, calls)
            self.times += made.times
            self.seconds, self.count = self.seconds + made.seconds, self.count + len(made.times)
        else:
            steps = []
            for _ in range(calls):
                steps.append(_timed(opened, sets[self._turn % len(sets)]))
                self._turn += 1
            times = [sum(step) for step in steps[dropped:]]
            self.steps += steps[dropped:]
            self.times += times
            self.seconds, self.count = self.seconds + sum(times), self.count + len(times)
        self.spent += time.perf_counter() - start

    def warm(self, settings: Settings, sets: Sequence[Inputs]) -> None:
        """Run it for the time of the warm-up, and find how many calls a block has."""
        calls = 2 * settings.in_flight * settings.threads if settings.concurrent else 1
        while self.spent < settings.warm_up or not self.count:
            self.block(settings, sets, calls, 0)
        took = self.seconds / self.count
        if settings.concurrent:
            self.calls = max(settings.block, int(_CONCURRENT_SECONDS / took))
        else:
            self.calls = max(_FEWEST, min(settings.block, int(settings.duration / took)))
        self.times, self.steps, self.seconds, self.count, self.spent = [], [], 0.0, 0, 0.0

    def gap(self, expected: Sequence[Sequence[Array]]) -> Gap:
        """The largest difference of its outputs from those, of whole numbers as they are stored."""
        gaps = (
            gap_of(ours, theirs, (1.0 if ours.dtype.kind in "iu" else 0.0, 0))
            for one, other in zip(self.outputs, expected, strict=True)
            for ours, theirs in zip(one, other, strict=True)
        )
        return reduce(Gap.merged, gaps, Gap())

    def close(self) -> None:
        """Release it."""
        if self.opened is not None:
            self.opened.close()


def run(opened: OpenedRuntime, inputs: Inputs) -> list[Array]:
    """One run: inputs by tensor index in, outputs in the model's order out."""
    opened.put(inputs)
    opened.invoke()
    return opened.take()


def _timed(opened: OpenedRuntime, inputs: Inputs) -> tuple[float, float, float]:
    start = time.perf_counter()
    opened.put(inputs)
    put = time.perf_counter()
    opened.invoke()
    invoked = time.perf_counter()
    opened.take()
    return put - start, invoked - put, time.perf_counter() - invoked


def draw_sets(model: Path, items: int, seed: int) -> list[Inputs]:
    """Sets of random inputs, for so many items.

    Raises:
        InputError: an input takes what there are no random values for.
        ModelError, UnsupportedError: as `Interpreter`.
    """
    rng = np.random.default_rng(seed)
    with Interpreter(str(model), experimental_delegates=[], batch=items) as interpreter:
        return [random_inputs(interpreter, rng) for _ in range(_SETS)]


def race(
    racers: Sequence[Racer],
    model: Path,
    settings: Settings,
    sets: Sequence[Inputs],
    progress: Progress,
) -> None:
    """Open all, warm each up, and time them by turns, in blocks. One that fails is out, and its
    ``error`` is set."""
    for racer in racers:
        progress(f"opening {racer.contestant}", 0.0)
        _try(racer, partial(racer.open, model, settings, sets))
    for racer in racers:
        progress(f"warming up {racer.contestant}", 0.0)
        _try(racer, partial(racer.warm, settings, sets))
    running = [racer for racer in racers if racer.error is None]
    tour = ProcessorTour()
    moves = tour.moves and not settings.concurrent  # which have threads of their own
    gc.collect()
    gc.disable()
    try:
        turn = 0
        while pending := [r for r in running if r.error is None and r.spent < settings.duration]:
            if moves:
                tour.move(turn)
            # Who begins changes, so that no contestant always follows the same one.
            first = turn % len(pending)
            for racer in (*pending[first:], *pending[:first]):
                apart = len(running) == 1 and not moves
                dropped = 0 if apart or racer.calls < _MANY else _DROPPED
                _try(racer, partial(racer.block, settings, sets, racer.calls, dropped))
            turn += 1
            done = sum(min(r.spent, settings.duration) for r in running)
            progress("measuring", done / (settings.duration * len(running)))
    finally:
        gc.enable()
        tour.end()


def _try(racer: Racer, step: Callable[[], None]) -> None:
    if racer.error is not None:
        return
    try:
        step()
    except Exception as error:  # noqa: BLE001  (what another runtime raises is its result)
        racer.error = error
