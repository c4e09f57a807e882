"""Runs a session with timers, and makes a `RunProfile` of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from tflgpu.compiler.machines import Limits
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.work import estimate
from tflgpu.contract.device import DispatchTime
from tflgpu.devices.limits import limits_of
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.plugins.registry import registry
from tflgpu.runtime.loaded_part import LoadedPart
from tflgpu.runtime.profile import DispatchProfile, PartProfile, RunProfile
from tflgpu.runtime.session import Session

#: Runs that do not count: drivers put work off until a first one, and clocks rise.
_WARM_UP = 3


@attrs.frozen(eq=False)
class _Call:
    """A call of a part: of which session, whether that has operators of the main subgraph, from
    when to when, and the times that the device noted."""

    session: Session
    is_own: bool
    part: LoadedPart
    start: float
    end: float
    times: Sequence[DispatchTime] | Unsupported


@attrs.frozen(eq=False)
class _Timing:
    """A `Watcher` that has each part of a session run with timers, and lists the calls."""

    session: Session
    is_own: bool
    calls: list[_Call]

    def run(self) -> None:
        """A run."""
        self.session.run_parts(self._timed)

    def close(self) -> None:
        """Nothing is held."""

    def _timed(self, part: LoadedPart) -> None:
        start = time.perf_counter()
        times = part.recording.profile()
        end = time.perf_counter()
        self.calls.append(_Call(self.session, self.is_own, part, start, end, times))


def profile_runs(
    session: Callable[[], Session | None],
    run: Callable[[], None],
    runs: int,
    flops: Mapping[int, float],
) -> RunProfile:
    """Run a model ``runs`` times without timers and as often with them, by turns.

    Args:
        session: Gives the session that ``run`` runs.
        run: Makes a run.
        runs: How many of each.
        flops: Of the main subgraph's operators, by index.

    Raises:
        StateError: the accuracy guard still compares each run with the CPU.
        DeviceError: a run failed.
    """
    for _ in range(_WARM_UP):
        run()
    found = session()
    assert found is not None
    limits = _limits(found)
    if any(each.is_watched for each, _ in (*found.inner, (found, True))):
        raise StateError(
            "the accuracy guard still compares each run with the CPU; profile after its runs, or "
            "without accuracy_guard"
        )
    with _timers(found):
        run()  # timers are made at the first use
    plain: list[float] = []
    taken: list[tuple[float, float, list[_Call]]] = []
    for _ in range(runs):
        plain.append(_timed(run)[0])
        with _timers(found) as calls:
            taken.append((*_timed(run), calls))
    if session() is not found:
        raise DeviceError("a run failed while it was profiled, and was made again without timers")
    taken.sort(key=lambda each: each[0])
    seconds, start, chosen = taken[runs // 2]
    return RunProfile(
        found.report,
        seconds,
        sorted(plain)[runs // 2],
        runs,
        tuple(_part(call, start, found.report, flops) for call in chosen),
        dict(flops),
        None if isinstance(limits, str) else limits,
        limits if isinstance(limits, str) else "",
    )


def _limits(session: Session) -> Limits | str:
    """What the device of a session can do, or why that is not known."""
    found = (part.device for each, _ in session.inner for part in each.parts)
    device = next((d for d in found if d is not None), None)
    if device is None:
        return "no part of the model runs kernels on a device"
    return limits_of(device, registry().distribution(device.info.backend))


def flops_of(graph: Graph, ops: Mapping[str, OpDef]) -> dict[int, float]:
    """Operations of the file's operators, by index; nothing of those that only move data."""
    found: dict[int, float] = {}
    for node in graph:
        op = ops.get(node.op)
        if op is None or all(v is None or v.is_const for v in node.inputs):
            continue  # what is known beforehand is computed once
        if op.movement.keeps_values and op.device.work is None:
            continue
        for origin in node.origins:
            share = estimate(node, op).flops / len(node.origins)
            found[origin] = found.get(origin, 0.0) + share
    return found


# Inside


def _timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a run, and when it began."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start, start


@contextmanager
def _timers(session: Session) -> Iterator[list[_Call]]:
    """The calls of parts, as runs make them meanwhile."""
    calls: list[_Call] = []
    watched = [each for each, _ in session.inner]
    for each, is_own in session.inner:
        each.watch(_Timing(each, is_own, calls))
    try:
        yield calls
    finally:
        for each in watched:
            each.unwatch()


def _part(
    call: _Call, start: float, report: DelegationReport, flops: Mapping[int, float]
) -> PartProfile:
    part, times = call.part, call.times
    names = {row.node: row.op for row in call.session.report.operators}
    runs_on = {row.node: row.runs_on for row in call.session.report.operators}
    dispatches: tuple[DispatchProfile, ...] = ()
    if part.outline is not None:
        listed: list[int] = [o for d in part.outline.dispatches for o in d.origins]
        if not isinstance(times, Unsupported) and times:
            dispatches = _dispatches(part, times, names, flops if call.is_own else {})
    else:
        listed = [o for node in part.nodes for o in node.origins]
    operators = tuple(dict.fromkeys(listed))
    reason = ""
    if not part.on_cpu and not dispatches:
        reason = times.reason if isinstance(times, Unsupported) else "the device has no timers"
    where = f"{report.backend} ({report.device})"
    if part.on_cpu:
        where = next((runs_on[o] for o in operators if runs_on.get(o)), "NumPy references")
    return PartProfile(
        part.label,
        0 if call.is_own else None,
        part.on_cpu,
        operators,
        tuple(names.get(o, "") for o in operators),
        where,
        call.start - start,
        call.end - call.start,
        dispatches,
        reason,
    )


def _dispatches(
    part: LoadedPart,
    times: Sequence[DispatchTime],
    names: Mapping[int, str],
    flops: Mapping[int, float],
) -> tuple[DispatchProfile, ...]:
    assert part.outline is not None
    planned = part.outline.dispatches
    spent: dict[int, float] = {}
    for dispatch, noted in zip(planned, times, strict=True):
        for origin in dispatch.origins:
            spent[origin] = spent.get(origin, 0.0) + noted.seconds
    return tuple(
        DispatchProfile(
            noted.label,
            noted.kernel,
            dispatch.origins,
            tuple(names.get(o, "") for o in dispatch.origins),
            noted.seconds,
            noted.start,
            part.outline.traffic(dispatch),
            sum(
                flops.get(o, 0.0) * noted.seconds / spent[o] if spent[o] else 0.0
                for o in dispatch.origins
            ),
        )
        for dispatch, noted in zip(planned, times, strict=True)
    )
