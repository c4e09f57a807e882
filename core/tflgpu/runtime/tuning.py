"""Ways to write kernels are timed on the device, and the fastest is kept for each problem.

    compile            the problems of a model, with the candidates of each, best first by the
                       prediction (`tflgpu.lowering.choices`)
    search             for each kind of choice: the whole model with every problem's second
                       candidate, its third, ... each beside the model as it is, by turns; a
                       problem's time is that of the kernels of its operators, by the device's clock
    confirm            the model with all that was found faster beside the model as it was
    whole              runs of the model with it and without; if that is slower, or gives other
                       numbers, nothing is kept

So a candidate runs where it will run: between the model's other kernels, on the same buffers, with
what they leave in the caches. Two forms of a model are loaded at a time, and both have warm clocks:
they run for a while before they are timed.
"""

from __future__ import annotations

import enum
import logging
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
from tflgpu.ir.graph import Graph
from tflgpu.lowering.choices import ChoicePoint, Choices
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.saved.kept_choices import KeptChoice, Tuning

T = TypeVar("T")
_LOG = logging.getLogger("tflgpu")
#: Candidates of a problem that are timed, by effort.
_FEW = 6
#: A candidate has to be so much faster, or it may be by chance; a whole run has to be no more than
#: so much slower.
_LEAST_GAIN, _NOISE = 0.02, 0.01
#: Results with other kernels may be so far away, in norms: far more than rounding of 16 bits.
_FARTHEST = 0.05
#: Seconds of runs before times count, and of timing; and the fewest runs of each form.
_WARM_UP, _TIMING, _FEWEST = 0.15, 0.25, 5

#: Told how much is done, and of how much.
Progress = Callable[[int, int], object]


class Effort(enum.Enum):
    """How many candidates of a problem are timed: the best six by the prediction, or all."""

    FAST = "fast"
    EXHAUSTIVE = "exhaustive"

    def most(self, point: ChoicePoint) -> int:
        """How many of a problem's."""
        return min(_FEW, len(point.candidates)) if self is Effort.FAST else len(point.candidates)


def tune(
    opened: OpenedDevice, graph: Graph, effort: Effort, progress: Progress | None = None
) -> Tuning:
    """Time candidates of the problems of a graph that were not timed yet, and keep the fastest:
    `OpenedDevice.kept_choices` has them from then on.

    Raises:
        UnsupportedError: there is no device that runs kernels, or it has no timers.
        DeviceError, PluginError, GraphError: as `tflgpu.runtime.opening.open_graph`.
    """
    device = opened.kernel_device(UnsupportedError, "tuned")
    start = time.perf_counter()
    tuner = _Tuner(device, graph, opened.target(), opened.kept_choices.known, effort)
    found = tuner.search(progress or (lambda done, whole: None))
    changed = {key: kept for key, kept in found.items() if kept.name != tuner.open[key].chosen}
    before, after, refusal = tuner.whole(changed) if changed else (None, None, "")
    if found and not refusal:
        opened.kept_choices.add(found)
    return Tuning(
        device.info.backend,
        device.info.name,
        effort.value,
        tuner.problems,
        found,
        changed,
        before,
        after,
        refusal,
        time.perf_counter() - start,
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
        problems: How many with several candidates it has.
        open: Those that were not timed yet, or with fewer candidates.
    """

    def __init__(
        self,
        device: Device,
        graph: Graph,
        target: Target,
        known: Mapping[str, KeptChoice],
        effort: Effort,
    ) -> None:
        self._device, self._graph, self._target = device, graph, target
        self._names, self._effort = dict(target.site.choices.names), effort
        points: dict[str, ChoicePoint] = {}
        self._compiled(self._names, points)
        several = [point for point in points.values() if len(point.candidates) > 1]
        self.problems = len(several)
        self.open = {
            point.key: point
            for point in several
            if point.key not in known or known[point.key].timed < effort.most(point)
        }

    def search(self, progress: Progress) -> dict[str, KeptChoice]:
        """The fastest candidates of the problems that were not timed yet."""
        rest = {
            key: [n for n in point.candidates if n != point.chosen][: self._effort.most(point) - 1]
            for key, point in self.open.items()
        }
        kinds: dict[str, list[str]] = {}
        for key in rest:
            kinds.setdefault(key.partition(" ")[0], []).append(key)
        counts = {kind: max(len(rest[key]) for key in keys) for kind, keys in kinds.items()}
        whole, done = sum(counts.values()) + bool(kinds), 0
        names = dict(self._names)
        usual: dict[str, float] = {}
        # The kinds with fewer candidates decide how operators are joined, of which tiles know.
        for kind in sorted(kinds, key=lambda each: -counts[each]):
            shares = dict.fromkeys(kinds[kind], 1.0 - _LEAST_GAIN)
            with ExitStack() as stack:
                base = self._form(dict(names), stack)
                for turn in range(counts[kind]):
                    progress(done, whole)
                    tried = {key: rest[key][turn] for key in kinds[kind] if turn < len(rest[key])}
                    for key, (before, after) in self._compared(base, tried).items():
                        usual.setdefault(key, before)
                        if after < shares[key] * before:
                            shares[key], names[key] = after / before, tried[key]
                    done += 1
        changed = {key: name for key, name in names.items() if self._names.get(key) != name}
        with ExitStack() as stack:
            usual_form = self._form(self._names, stack) if changed else None
            confirmed = self._compared(usual_form, changed) if usual_form else {}
        if whole:
            progress(whole, whole)
        found = {}
        for key, point in self.open.items():
            before, after = confirmed.get(key, (usual.get(key, 0.0),) * 2)
            is_faster = after < (1.0 - _LEAST_GAIN) * before
            name, after = (changed[key], after) if is_faster else (point.chosen, before)
            timed = self._effort.most(point)
            found[key] = KeptChoice(name, point.candidates[0], timed, before, after)
        return found

    def whole(self, changed: Mapping[str, KeptChoice]) -> tuple[float, float, str]:
        """Median seconds of a run as the model is, and with other choices; and why these cannot be
        kept, "" where they can."""
        names = {**self._names, **{key: kept.name for key, kept in changed.items()}}
        with ExitStack() as stack:
            forms = [self._form(each, stack) for each in (self._names, names)]
            before, after = _by_turns(
                [partial(run_seconds, each.recordings, each.plans) for each in forms]
            )
            refusal = "" if _agree(*(each.recordings for each in forms)) else "other results"
        old, new = median(before), median(after)
        return old, new, refusal or ("not faster" if new > old * (1.0 + _NOISE) else "")

    def _compared(self, base: _Form, tried: Mapping[str, str]) -> dict[str, tuple[float, float]]:
        """Median seconds of problems as they are in a form, and with the candidates that are tried.
        Those that a device cannot load are missing."""
        points = [self.open[key] for key in tried]
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
            _LOG.info("tflgpu: candidates are left out, which the device refuses: %s", str(error))
            if len(tried) == 1:
                return {}
            keys = list(tried)
            halves = (keys[: len(keys) // 2], keys[len(keys) // 2 :])
            parts = [self._compared(base, {key: tried[key] for key in half}) for half in halves]
            return {**parts[0], **parts[1]}
        before, after = ([median(each) for each in zip(*runs, strict=True)] for runs in series)
        timed = zip(points, before, after, strict=True)
        return {point.key: (old, new) for point, old, new in timed if old and new}

    def _compiled(self, names: Mapping[str, str], points: dict[str, ChoicePoint]) -> Sequence[Plan]:
        """The plans with some choices; the problems are listed in ``points``."""
        site = attrs.evolve(self._target.site, choices=Choices(names, points=points))
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


def _by_turns(runs: Sequence[Callable[[], T]]) -> list[list[T]]:
    """What each gives, several times, after a while of the same."""
    found: list[list[T]] = [[] for _ in runs]
    for limit, fewest in ((_WARM_UP, 1), (_TIMING, _FEWEST)):
        for each in found:
            each.clear()
        start = time.perf_counter()
        while len(found[0]) < fewest or time.perf_counter() < start + limit:
            for run, values in zip(runs, found, strict=True):
                values.append(run())
    return found
