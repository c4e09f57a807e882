"""Ways to write kernels are timed on the device, and the fastest is kept for each problem.

    problems           those of a model, with the candidates of each, best first by the prediction
                       (`tflgpu.lowering.choices`); first the tiles of all kernels, then which nodes
                       one kernel makes
    search             the whole model with every problem's second candidate, its third, ... each
                       beside the model as it is, by turns; a problem's time is that of the kernels
                       of its operators, by the device's clock
    confirm            the model with all that was found faster beside the model as it was
    whole              runs of the model with it and without; if that is slower, or gives other
                       numbers, the model stays as it was
    keep               what is known now; and again from the top with the candidates that are left,
                       and with problems that are new because nodes were joined

So a candidate runs where it will run: between the model's other kernels, on the same buffers, with
what they leave in the caches. Two forms of a model are loaded at a time, and both have warm clocks:
they run for a while before they are timed. What is interrupted goes on where it kept the last.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TypeVar

import attrs
import numpy as np

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device, Recording
from tflgpu.errors import DeviceError, MemoryLimitError, UnsupportedError
from tflgpu.errors.blame import LOG
from tflgpu.ir.graph import Graph
from tflgpu.lowering.choices import ChoicePoint
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.saved.kept_choices import KeptChoice, TimedCandidate, Tuning, WholeRun

T = TypeVar("T")
#: A candidate has to be so much faster, or it may be by chance; a whole run has to be no more than
#: so much slower.
_LEAST_GAIN, _NOISE = 0.02, 0.01
#: Results with other kernels may be so far away, in norms: far more than rounding of 16 bits.
_FARTHEST = 0.05
#: Seconds of runs before times count, and of timing; and the fewest runs of each form.
_WARM_UP, _TIMING, _FEWEST = 0.1, 0.2, 5

#: Told how much is done, and of how much.
Progress = Callable[[int, int], object]


#: How many candidates of a problem are timed, the best by the prediction, and how many of them
#: before what was found is kept.
EFFORTS: Mapping[str, tuple[int, int]] = {"fast": (6, 6), "exhaustive": (sys.maxsize, 16)}


def tune(
    opened: OpenedDevice, graph: Graph, effort: str, progress: Progress | None = None
) -> Tuning:
    """Time candidates of the problems of a graph that were not timed yet, and keep the fastest:
    `OpenedDevice.kept_choices` has them from then on. What was kept before an exception stays.

    Raises:
        UnsupportedError: there is no device that runs kernels, or it has no timers.
        DeviceError, PluginError, GraphError: as `tflgpu.runtime.opening.open_graph`.
    """
    device = opened.kernel_device(UnsupportedError, "tuned")
    start, tell = time.perf_counter(), progress or (lambda done, whole: None)
    kept, done = opened.kept_choices, 0
    found: dict[str, KeptChoice] = {}
    usual: Mapping[str, str] = {}
    times: dict[str, list[TimedCandidate]] = {}
    run: WholeRun | None = None
    while True:
        tuner = _Tuner(device, graph, opened.target(), kept.known, effort)
        usual = {**{key: point.chosen for key, point in tuner.points.items()}, **usual}
        turns = tuner.turns()
        if not turns:
            break
        made, last = tuner.search(turns, times, done, tell)
        done += max(map(len, turns.values()))
        kept.add(made)
        found.update(made)
        if last and (not run or run.refusal):
            run = last
        elif last and run and not last.refusal:
            run = attrs.evolve(last, before=run.before)
    if done:
        tell(done, done)
    return Tuning(
        device.info.backend,
        device.info.name,
        effort,
        len(usual),
        found,
        {key: each for key, each in found.items() if each.name != usual[key]},
        run,
        time.perf_counter() - start,
        times,
    )


def run_seconds(recordings: Sequence[Recording], plans: Sequence[Plan]) -> float:
    """Seconds of one run of all parts, of which these are the plans."""
    start = time.perf_counter()
    for recording in recordings:
        recording.run()
    return time.perf_counter() - start


def kernel_seconds(recording: Recording, plan: Plan) -> list[float]:
    """Seconds of each dispatch of one run, with the usual gap between two: a problem that takes
    fewer dispatches has fewer gaps.

    Raises:
        UnsupportedError: the device has no timers.
    """
    times = recording.profile()
    if isinstance(times, Unsupported):
        raise UnsupportedError(f"kernels cannot be tuned: {times.reason}")
    gaps = [
        after.start - before.start - before.seconds
        for before, after in pairwise(times)
        if before.start is not None and after.start is not None
    ]
    gap = max(median(gaps), 0.0) if gaps else 0.0
    return [each.seconds + gap for each in times]


@attrs.frozen
class _Form:
    """A model with some choices, loaded."""

    names: Mapping[str, str]
    plans: Sequence[Plan]
    recordings: Sequence[Recording]
    points: Mapping[str, ChoicePoint]

    def seconds(self, points: Iterable[ChoicePoint]) -> list[float]:
        """Of the kernels of each problem, in one run."""
        spent = [
            (seconds, frozenset(dispatch.origins))
            for plan, recording in zip(self.plans, self.recordings, strict=True)
            for dispatch, seconds in zip(
                plan.dispatches, kernel_seconds(recording, plan), strict=True
            )
        ]
        return [
            sum(seconds for seconds, origins in spent if origins & point.origins)
            for point in points
        ]


class _Tuner:
    """The search for one graph.

    Attributes:
        points: The problems that it has with several candidates, by key.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        target: Target,
        known: Mapping[str, KeptChoice],
        effort: str,
    ) -> None:
        self._device, self._graph, self._target = device, graph, target
        self._names, self._known = dict(target.site.choices.names), known
        self._most, self._at_once = EFFORTS[effort]
        points: dict[str, ChoicePoint] = {}
        self._compiled(self._names, points)
        self.points = {key: point for key, point in points.items() if len(point.candidates) > 1}

    def _timed(self, point: ChoicePoint) -> int:
        return self._known[point.key].timed if point.key in self._known else 0

    def _left(self, point: ChoicePoint) -> int:
        return min(self._most, len(point.candidates)) - self._timed(point)

    def turns(self) -> dict[str, Sequence[str]]:
        """The candidates to time next, by problem. Tiles come first: how nodes are joined is
        decided between kernels that are fast."""
        open_ = [point for point in self.points.values() if self._left(point) > 0]
        tiles = [point for point in open_ if "joined" not in point.candidates]
        found: dict[str, Sequence[str]] = {}
        for point in tiles or open_:
            timed, count = self._timed(point), min(self._left(point), self._at_once)
            names = list(point.candidates)[timed : timed + count]
            found[point.key] = [name for name in names if name != point.chosen]
        return found

    def search(
        self,
        turns: Mapping[str, Sequence[str]],
        times: dict[str, list[TimedCandidate]],
        done: int,
        tell: Progress,
    ) -> tuple[dict[str, KeptChoice], WholeRun | None]:
        """What is known of problems after their turns, and how a run of the model with it compares
        to one as it is; None where nothing is faster. The ``times`` of candidates are added; there
        were ``done`` turns before."""
        names, usual = dict(self._names), dict[str, float]()
        points = [self.points[key] for key in turns]
        left = max(map(self._left, points))
        shares = dict.fromkeys(turns, 1.0 - _LEAST_GAIN)
        with ExitStack() as stack:
            base = self._form(self._names, stack)
            for turn in range(max(map(len, turns.values()))):
                tell(done + turn, done + left)
                tried = {key: each[turn] for key, each in turns.items() if turn < len(each)}
                for key, (before, after) in self._compared(base, tried).items():
                    usual.setdefault(key, before)
                    if after < shares[key] * before:
                        shares[key], names[key] = after / before, tried[key]
                    costs, usually = self.points[key].candidates, self.points[key].chosen
                    first = TimedCandidate(usually, costs[usually], before)
                    times.setdefault(key, [first]).append(
                        TimedCandidate(tried[key], costs[tried[key]], usual[key] * after / before)
                    )
            changed = {key: names[key] for key in turns if names.get(key) != base.names.get(key)}
            confirmed = {
                key: each
                for key, each in (self._compared(base, changed) if changed else {}).items()
                if each[1] < (1.0 - _LEAST_GAIN) * each[0]
            }
            run = self._whole(base, {key: names[key] for key in confirmed}) if confirmed else None
        found = {}
        for point in points:
            key, known = point.key, self._known.get(point.key)
            is_faster = key in confirmed and not (run and run.refusal)
            before, after = confirmed[key] if is_faster else (usual.get(key, 0.0),) * 2
            found[key] = KeptChoice(
                names[key] if is_faster else point.chosen,
                next(iter(point.candidates)),
                self._timed(point) + min(self._left(point), self._at_once),
                known.before if known and known.timed else before,
                after,
            )
        return found, run

    def _whole(self, base: _Form, changed: Mapping[str, str]) -> WholeRun:
        """Runs of the model as it is, and with other choices."""
        with ExitStack() as stack:
            form = self._form({**base.names, **changed}, stack)
            before, after = map(
                median,
                _by_turns([partial(run_seconds, f.recordings, f.plans) for f in (base, form)]),
            )
            refusal = "" if _agree(base.recordings, form.recordings) else "other results"
        is_slower = after > before * (1.0 + _NOISE)
        return WholeRun(before, after, refusal or ("not faster" if is_slower else ""))

    def _compared(self, base: _Form, tried: Mapping[str, str]) -> dict[str, tuple[float, float]]:
        """Median seconds of problems as they are in a form, and with the candidates that are tried.
        Those that a device cannot load are missing."""
        points = [self.points[key] for key in tried]
        try:
            with ExitStack() as stack:
                form = self._form({**base.names, **tried}, stack)
                # A candidate over a limit of the device leaves its operator to the CPU.
                made = form.points
                points = [p for p in points if p.key in made and made[p.key].chosen == tried[p.key]]
                series = _by_turns([partial(each.seconds, points) for each in (base, form)])
        except MemoryLimitError:
            raise
        except DeviceError as error:
            LOG.info("tflgpu: candidates are left out, which the device refuses: %s", str(error))
            keys, half = list(tried), len(tried) // 2
            parts = [{key: tried[key] for key in part} for part in (keys[:half], keys[half:])]
            return {k: v for part in parts if half for k, v in self._compared(base, part).items()}
        before, after = ([median(each) for each in zip(*runs, strict=True)] for runs in series)
        timed = zip(points, before, after, strict=True)
        return {point.key: (old, new) for point, old, new in timed if old and new}

    def _compiled(self, names: Mapping[str, str], points: dict[str, ChoicePoint]) -> Sequence[Plan]:
        """The plans with some choices; the problems are listed in ``points``."""
        choices = attrs.evolve(self._target.site.choices, names=names, points=points)
        site = attrs.evolve(self._target.site, choices=choices)
        return compile_graph(self._graph, attrs.evolve(self._target, site=site)).plans

    def _form(self, names: Mapping[str, str], stack: ExitStack) -> _Form:
        points: dict[str, ChoicePoint] = {}
        plans, recordings = self._compiled(names, points), []
        for plan in plans:
            recordings.append(self._device.load(plan))
            stack.callback(recordings[-1].close)
            _fill(recordings[-1])
        return _Form(names, plans, recordings, points)


def _fill(recording: Recording) -> None:
    """Numbers that no multiplication is spared by; whole ones may be indices, and stay zeros."""
    draw = np.random.default_rng(0)
    for array in recording.inputs:
        if array.dtype.kind == "f":
            array[...] = draw.uniform(-1, 1, array.shape)


def _agree(usual: Sequence[Recording], other: Sequence[Recording]) -> bool:
    """Whether the last runs gave the same but for rounding: a driver may get a kernel wrong."""
    outputs = ([array for each in form for array in each.outputs] for form in (usual, other))
    for expected, found in zip(*outputs, strict=True):
        if expected.dtype.kind == "f":
            there = np.isfinite(expected)
            wanted, made = (np.float64(each[there]) for each in (expected, found))
            error = np.linalg.norm(made - wanted)
            if not error <= _FARTHEST * np.linalg.norm(wanted):  # nor may it be NaN
                return False
    return True


def _by_turns(runs: Sequence[Callable[[], T]]) -> list[tuple[T, ...]]:
    """What each gives, several times, after a while of the same."""
    for limit, fewest in ((_WARM_UP, 1), (_TIMING, _FEWEST)):
        found: list[list[T]] = []
        start = time.perf_counter()
        while len(found) < fewest or time.perf_counter() < start + limit:
            found.append([run() for run in runs])
    return list(zip(*found, strict=True))
