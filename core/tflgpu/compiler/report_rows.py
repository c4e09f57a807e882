"""The lines of a report that people read: what became of which operators, and the time it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from tflgpu.compiler.report_values import OperatorReport, Place, Refusal, numbers
from tflgpu.compiler.times import told

if TYPE_CHECKING:
    from tflgpu.compiler.report_values import ReportFields

COLUMNS = ("operators", "op", "where", "why", "time", "gain")


@attrs.frozen
class ReportRow:
    """A line, as text.

    Attributes:
        operators: Which, by index.
        op: Their name.
        where: Where they run.
        why: Why not on the device.
        time: Estimated, of all together.
        gain: Estimated, of all together.
    """

    operators: str
    op: str
    where: str
    why: str
    time: str
    gain: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `COLUMNS`."""
        return attrs.astuple(self)


def rows(report: ReportFields, *, every: bool = False) -> list[ReportRow]:
    """A line for all operators that one thing became of, in the order of the first; with ``every``
    one for each operator."""
    groups: dict[tuple[object, ...], list[OperatorReport]] = {}
    for operator in report.operators or _from_refusals(report.refusals):
        same = (operator.op, _where(operator), operator.reason)
        key = (operator.node,) if every else same
        groups.setdefault(key, []).append(operator)
    return [_row(group) for group in groups.values()]


def notes(report: ReportFields) -> Iterator[str]:
    """What is to be said below the lines."""
    if report.partitioning:
        yield f"partitioning: {report.partitioning} ({report.partitioning_reason})"
    if report.partitions > 1:
        yield (
            f"{report.partitions} parts are on the device; TFLite's GPU delegate would take one "
            "(max_delegated_partitions=1 does)"
        )
    if report.estimates and report.seconds is not None:
        whole = (
            ""
            if report.cpu_seconds is None
            else (f"; wholly on the CPU {told(report.cpu_seconds)}")
        )
        yield f"estimated: {told(report.seconds)} a run{whole} ({report.estimates})"
    if report.tuned:
        choices: dict[str, list[int]] = {}
        for each in report.tuned:
            choices.setdefault(each.choice, []).extend(each.operators)
        told_choices = "; ".join(f"{name} for {numbers(at)}" for name, at in choices.items())
        yield f"tuned: {len(report.tuned)} of {report.dispatches} dispatches: {told_choices}"
    if report.accuracy is not None:
        yield f"accuracy guard: {report.accuracy.story}"


def _from_refusals(refusals: Sequence[Refusal]) -> list[OperatorReport]:
    return [
        OperatorReport(r.node, r.op, runs_on=r.runs_on, code=r.code, reason=r.reason)
        for r in refusals
    ]


def _row(group: Sequence[OperatorReport]) -> ReportRow:
    first = group[0]
    return ReportRow(
        numbers(operator.node for operator in group),
        first.op,
        _where(first),
        first.reason,
        _sum([operator.seconds for operator in group]),
        _sum([operator.gain for operator in group]),
    )


def _where(operator: OperatorReport) -> str:
    if operator.place is Place.DEVICE:
        return f"{operator.backend or 'device'}, part {operator.partition}"
    if operator.place is Place.FOLDED:
        return "folded"
    return f"CPU, {operator.runs_on or 'NumPy references'}"


def _sum(times: Sequence[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    if not known:
        return ""
    total = sum(known)
    return f"-{told(-total)}" if total < 0 else told(total)
