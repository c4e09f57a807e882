"""Compares the first runs of a session with the CPU; nodes that are off are compiled again in f32.

    run -> compare outputs -> off? -> nodes to blame -> compile with those in f32 -> compare
                                      none, or still off: all in f32 -> still off: `OnFailure`

Inputs and state before a run are kept until it is judged, and every session that takes part in it
begins from those; the one whose results the caller gets is the one that is gone on with, so that
state advances once a run. What is found holds for one session, that is for one set of input shapes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import cpu_report, placed
from tflgpu.compiler.report_values import AccuracyCheck, AccuracyOutcome, Inaccurate
from tflgpu.compiler.target import Target
from tflgpu.errors import DeviceError, TflgpuError
from tflgpu.errors.blame import LOG
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options.accuracy import AccuracyGuard, OnFailure
from tflgpu.runtime.guard.criterion import Off, off_by, worst
from tflgpu.runtime.guard.locate import Guilty, locate, set_before
from tflgpu.runtime.guard.workshop import Workshop
from tflgpu.runtime.loading import Loader
from tflgpu.runtime.provider import Provider
from tflgpu.runtime.session import Session

#: A node is to blame at the tolerance; where redoing those does not mend the outputs, since smaller
#: errors have met, at a part of it. Nothing is to blame for four roundings to f16.
_PARTS = (1.0, 1 / 4, 1 / 16)
_LEAST = 4 * 2.0**-11
#: Operators that a message names; the report has all.
_MOST_NAMED = 8

_Outcome = AccuracyOutcome


def guard_session(
    session: Session,
    graph: Graph,
    target: Target,
    loader: Loader,
    again: Callable[[Graph, Target], Compiled],
    report: Callable[[Compiled], DelegationReport],
    provider: Provider,
) -> None:
    """Let a guard watch a session of a graph until as many runs are compared as the options say.
    ``again`` compiles. Where nothing of it runs on the device there is nothing to compare."""
    options = provider.options
    if options.accuracy_guard is not None and any(not part.on_cpu for part in session.parts):
        told = provider.accuracy.append
        shop = Workshop(graph, target, loader, again, report, told, options.allow_fallback)
        session.watch(Guard(session, shop, options.accuracy_guard))


class Guard:
    """Watches one session."""

    def __init__(self, session: Session, shop: Workshop, options: AccuracyGuard) -> None:
        self._session = weakref.ref(session)  # which owns this object
        self._shop = shop
        self._options = options
        self._reference: Session | None = None
        self._target = shop.target
        self._check = AccuracyCheck(_Outcome.PENDING)
        self._note(session, self._check)

    def run(self) -> None:
        """A run, and what follows from it.

        Raises:
            StateError, DeviceError: as `Session.run`.
            DeviceError: the results are off, f32 does not mend them, and this is to be an error.
        """
        session = self._session()
        assert session is not None
        state = {key: array.copy() for key, array in session.variables.items()}
        session.run_parts()
        if self._options.only_overflow and self._is_finite(session):
            self._passed_over(session)
            return
        session.complete = False  # until the results are known to be good
        before = {v.id: session.arrays[v.id] for v in self._shop.graph.inputs} | state
        try:
            reference = self._run_reference(before)
        except TflgpuError as error:
            story = f"results are not checked, since the CPU cannot run this graph: {error}"
            self._note(session, attrs.evolve(self._check, outcome=_Outcome.UNCHECKED, story=story))
            self._say()
            self._end(session)
            session.complete = True
            return
        off = self._compare(session, reference)
        if off.beyond(self._options.tolerance):
            self._mend(session, reference, before, off)
        else:
            self._passed(session, off)
        session.complete = True

    def close(self) -> None:
        """Release the CPU's session; twice is harmless."""
        reference, self._reference = self._reference, None
        if reference is not None:
            reference.close()

    # Comparing

    def _run_reference(self, before: Mapping[int, Array]) -> Session:
        if self._reference is None:
            self._reference = self._shop.reference()
        set_before(self._reference, before)
        self._reference.run()
        return self._reference

    def _compare(self, session: Session, reference: Session) -> Off:
        """The worst of the outputs, and of the state after the run."""
        graph = self._shop.graph
        got, expected = session.arrays, reference.arrays
        results = {v.id: v for v in graph.outputs}
        results |= {key: graph.values[key] for key in session.variables if key in expected}
        return worst([off_by(got[key], expected[key], v) for key, v in results.items()])

    def _is_finite(self, session: Session) -> bool:
        """Whether no result, nor state after the run, is infinite or NaN."""
        results = {v.id for v in self._shop.graph.outputs} | session.variables.keys()
        arrays = [session.arrays[key] for key in results if key in session.arrays]
        return all(a.dtype.kind != "f" or np.isfinite(a).all() for a in arrays)

    def _passed_over(self, session: Session) -> None:
        """A run whose results are finite, and are not compared."""
        runs = self._check.runs + 1
        check = attrs.evolve(self._check, runs=runs)
        if check.outcome is not _Outcome.REDONE:
            story = "no result is infinite or NaN; none was compared (only_overflow)"
            check = attrs.evolve(check, outcome=_Outcome.UNCHECKED, story=story)
        self._note(session, check)
        if runs == self._options.runs:
            self._end(session)

    def _passed(self, session: Session, off: Off) -> None:
        runs = self._check.runs + 1
        error = max(off.share, self._check.error or 0.0)
        outcome, story = self._check.outcome, self._check.story
        if outcome is not _Outcome.REDONE:
            outcome, story = _Outcome.ACCURATE, f"results are {_within(error, self._options)}"
        self._note(
            session, attrs.evolve(self._check, outcome=outcome, runs=runs, error=error, story=story)
        )
        if runs == self._options.runs:
            self._end(session)

    # Mending

    def _mend(
        self, session: Session, reference: Session, before: Mapping[int, Array], off: Off
    ) -> None:
        found: dict[int, Inaccurate] = {i.node: i for i in self._check.inaccurate}
        story = f"results on the device were wrong ({off})"
        tried = self._target.in_f32
        halves = self._target.rules is not None and self._target.site.precision is not Precision.F32
        limits = self._limits() if halves else (self._options.tolerance,)
        target = self._target
        guilty = self._locate(before, limits[-1], target)
        for limit in limits:
            for one in (g for g in guilty if g.off.beyond(limit)):
                found = {r.node: r for r in one.reports()} | found
                target = attrs.evolve(target, in_f32=target.in_f32 | one.origins)
            if not halves or target.in_f32 == tried:
                continue
            tried = target.in_f32
            mended = self._try(target, reference, before)
            if mended is not None:
                told = f"{story}; {_counted(target.in_f32)} redone in f32, and they are"
                self._adopt(session, mended, target, target.in_f32, found, told)
                return
        if halves:
            target = attrs.evolve(self._target.in_precision(Precision.F32), in_f32=frozenset())
            mended = self._try(target, reference, before)
            if mended is not None:
                why = (
                    "redoing those to blame was not enough" if found else "no operator is to blame"
                )
                told = f"{story}; {why}, so all were redone in f32, and they are"
                every = frozenset(o for node in self._shop.graph for o in node.origins)
                self._adopt(session, mended, target, every, found, told)
                return
            story = f"{story}, and in f32 too"
            guilty = self._locate(before, self._options.tolerance, target)
            found = {r.node: r for one in guilty for r in one.reports()}
        self._give_up(session, reference, off, found, story)

    def _limits(self) -> tuple[float, ...]:
        """How far off the result of a node may be, largest first."""
        tolerance = self._options.tolerance
        smaller = [part * tolerance for part in _PARTS if part * tolerance >= _LEAST]
        return tuple(smaller) or (tolerance,)

    def _locate(
        self, before: Mapping[int, Array], limit: float, target: Target
    ) -> Sequence[Guilty]:
        """The nodes that are off by more than ``limit``; none where that cannot be told."""
        try:
            compiled = self._shop.compile(self._shop.graph, target)
            return locate(self._shop, compiled, target, before, limit)
        except TflgpuError as error:
            LOG.warning("tflgpu: which operators are to blame cannot be told: %s", str(error))
            return ()

    def _try(
        self, target: Target, reference: Session, before: Mapping[int, Array]
    ) -> tuple[Session, Off] | None:
        """A session for another target that has run, and how far off it is; None where that is
        too far, or it cannot be opened."""
        try:
            session = self._shop.open(target)
        except TflgpuError as error:
            LOG.info("tflgpu: a graph could not be redone in f32: %s", str(error))
            return None
        good = False
        try:
            set_before(session, before)
            session.run()
            off = self._compare(session, reference)
            good = not off.beyond(self._options.tolerance)
        except TflgpuError as error:
            LOG.info("tflgpu: a graph could not be run in f32: %s", str(error))
        finally:
            if not good:
                session.close()
        return (session, off) if good else None

    def _adopt(
        self,
        session: Session,
        mended: tuple[Session, Off],
        target: Target,
        redone: frozenset[int],
        found: Mapping[int, Inaccurate],
        story: str,
    ) -> None:
        (other, off), choice = mended, session.report.choice
        session.take_over(other)
        session.report = attrs.evolve(session.report, choice=choice)
        self._target = target
        runs = self._check.runs + 1
        story = f"{story} {_within(off.share, self._options)}"
        check = AccuracyCheck(
            _Outcome.REDONE, runs, off.share, _sorted(found), tuple(sorted(redone)), story
        )
        self._note(session, check, precision=target.site.precision.value)
        self._say()
        if runs == self._options.runs:
            self._end(session)

    def _give_up(
        self,
        session: Session,
        reference: Session,
        off: Off,
        found: Mapping[int, Inaccurate],
        story: str,
    ) -> None:
        choice = self._options.on_failure
        if choice is OnFailure.CPU and not self._shop.may_use_cpu:
            choice, story = OnFailure.ERROR, f"{story}; allow_fallback is off"
        runs, inaccurate = self._check.runs + 1, _sorted(found)
        check = AccuracyCheck(_Outcome.KEPT, runs, off.error, inaccurate, story=story)
        if choice is OnFailure.CPU:
            self._reference = None
            old = session.report
            session.take_over(reference)
            session.report = _on_cpu(session, self._shop.graph, old, story)
            story = f"{story}; everything runs on the CPU from now on"
            check = attrs.evolve(check, outcome=_Outcome.ON_CPU, error=0.0, story=story)
        elif choice is OnFailure.KEEP:
            check = attrs.evolve(check, story=f"{story}; it is kept as it is, as the option says")
        else:
            self._note(session, attrs.evolve(check, outcome=_Outcome.FAILED, runs=runs - 1))
            raise DeviceError(_told(self._check))
        self._note(session, check)
        self._say()
        self._end(session)

    # Saying

    def _note(self, session: Session, check: AccuracyCheck, *, precision: str = "") -> None:
        self._check = check
        report = attrs.evolve(session.report, accuracy=check)
        session.report = attrs.evolve(report, precision=precision) if precision else report

    def _say(self) -> None:
        LOG.warning("tflgpu: %s", _told(self._check))

    def _end(self, session: Session) -> None:
        session.unwatch()
        self._shop.finished(self._check)


def _within(error: float, options: AccuracyGuard) -> str:
    return f"within {error:.2g} of the CPU's, of {options.tolerance:g} allowed"


def _counted(redone: frozenset[int]) -> str:
    return "1 operator was" if len(redone) == 1 else f"{len(redone)} operators were"


def _sorted(found: Mapping[int, Inaccurate]) -> tuple[Inaccurate, ...]:
    return tuple(found[node] for node in sorted(found))


def _told(check: AccuracyCheck) -> str:
    first, more = check.inaccurate[:_MOST_NAMED], len(check.inaccurate) - _MOST_NAMED
    named = [f"#{i.node} {i.op}: {i.reason}" for i in first]
    named += [f"and {more} more"] if more > 0 else []
    return "; ".join([f"accuracy guard: {check.story}", *named])


def _on_cpu(session: Session, graph: Graph, old: DelegationReport, why: str) -> DelegationReport:
    """The report of a graph that goes to the CPU; ``session`` runs it there."""
    report = cpu_report(graph, f"accuracy guard: {why}", ReasonCode.INACCURATE)
    report = placed(report, {r.node: r.runs_on for r in session.report.refusals})
    return attrs.evolve(report, choice=old.choice)
