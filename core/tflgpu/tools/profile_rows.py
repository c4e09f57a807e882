"""The tables of a profile, as text: where the time goes, by operator kind, by dispatch, on the
CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tflgpu.compiler.report_values import numbers
from tflgpu.compiler.times import told
from tflgpu.runtime.profile import DispatchProfile, PartProfile, RunProfile

T = TypeVar("T", DispatchProfile, PartProfile)

_RATES = ("time", "of the run", "GB/s", "GFLOP/s", "of limit")


@attrs.frozen
class TextTable:
    """A table whose cells are texts.

    Attributes:
        title: What it shows.
        columns: Headings.
        rows: Cells, as many as there are headings.
        names: Columns of words, which come first; the others are numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


def tables(profile: RunProfile, most: int | None = None) -> list[TextTable]:
    """Those that have rows; of dispatches and parts the ``most`` that took longest, None for all in
    their order."""
    found = (_steps(profile), _kinds(profile), _dispatches(profile, most), _whole(profile, most))
    return [table for table in found if table.rows]


def lines(profile: RunProfile) -> Iterator[str]:
    """What is to be said above the tables."""
    yield profile.report.summary
    yield (
        f"{told(profile.seconds)} a run with timers, {told(profile.plain)} without "
        f"(medians of {profile.runs} runs each)"
    )
    if profile.no_times:
        yield f"no times of dispatches: {profile.no_times}"
    elif profile.limits is not None:
        yield (
            f"the device moves {_number(profile.limits.bandwidth / 1e9)} GB/s and computes "
            f"{_number(profile.limits.arithmetic / 1e9)} GFLOP/s at most (f32, no matrix units), "
            "as measured"
        )
    elif profile.dispatches:
        yield f"shares of the device's limits are not told: {profile.no_limits}"


def kind_of(profile: RunProfile, dispatch: DispatchProfile) -> str:
    """The operator that a dispatch is mostly for: the one with the most operations, of several
    alike the first; the kernel where it is for none of the file's."""
    pairs = zip(dispatch.operators, dispatch.ops, strict=True)
    return max(pairs, key=lambda pair: profile.flops.get(pair[0], 0.0), default=(0, ""))[1] or (
        f"({dispatch.kernel})"
    )


def operators_of(what: DispatchProfile | PartProfile) -> str:
    """Operators of the file, shortly: "#3 CONV_2D, #4 RELU"."""
    listed = [f"#{at} {op}" for at, op in zip(what.operators, what.ops, strict=True)]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more


def _steps(profile: RunProfile) -> TextTable:
    rows = [(name, told(s), _share(s, profile)) for name, s in profile.steps.items()]
    total = sum(profile.steps.values())
    rows.append(("together", told(total), _share(total, profile)))
    return TextTable("Where the time goes", ("what", "time", "of the run"), tuple(rows))


def _kinds(profile: RunProfile) -> TextTable:
    groups: dict[str, list[DispatchProfile]] = {}
    for dispatch in profile.dispatches:
        groups.setdefault(kind_of(profile, dispatch), []).append(dispatch)
    ranked = sorted(groups.items(), key=lambda item: -sum(d.seconds for d in item[1]))
    rows = tuple((kind, str(len(own)), *_rates(profile, own)) for kind, own in ranked)
    return TextTable("By operator kind", ("kind", "dispatches", *_RATES), rows)


def _dispatches(profile: RunProfile, most: int | None) -> TextTable:
    shown, title = _longest(profile.dispatches, most, "dispatches")
    rows = tuple((operators_of(d) or d.label, d.kernel, *_rates(profile, [d])) for d in shown)
    return TextTable(title, ("operators", "kernel", *_RATES), rows, names=2)


def _whole(profile: RunProfile, most: int | None) -> TextTable:
    found = [part for part in profile.parts if part.on_cpu or not part.dispatches]
    shown, title = _longest(found, most, "parts without times of dispatches")
    rows = tuple(
        (
            numbers(part.operators),
            ", ".join(dict.fromkeys(part.ops)),
            part.runs_on,
            told(part.seconds),
            _share(part.seconds, profile),
        )
        for part in shown
    )
    columns = ("operators", "kinds", "run by", "time", "of the run")
    return TextTable(title, columns, rows, names=3)


def _longest(every: Sequence[T], most: int | None, what: str) -> tuple[Sequence[T], str]:
    """Those that are shown, and a title."""
    if most is None or len(every) <= most:
        return every, what.capitalize()
    shown = sorted(every, key=lambda each: -each.seconds)[:most]
    return shown, f"The {most} of {len(every)} {what} that took longest"


def _rates(profile: RunProfile, dispatches: Sequence[DispatchProfile]) -> tuple[str, ...]:
    """Time, share, GB/s, GFLOP/s and share of the limits of some together; what is not known, or
    would be divided by no time, is empty."""
    seconds = sum(d.seconds for d in dispatches)
    together = DispatchProfile(
        "",
        "",
        (),
        (),
        seconds,
        None,
        sum(d.nbytes for d in dispatches),
        sum(d.flops for d in dispatches),
    )
    moved, computed = (
        _number(amount / seconds / 1e9) if seconds and amount else ""
        for amount in (together.nbytes, together.flops)
    )
    limit = None if profile.limits is None else together.of_limit(profile.limits)
    fraction = "" if limit is None else f"{limit:.0%}"
    return told(seconds), _share(seconds, profile), moved, computed, fraction


def _share(seconds: float, profile: RunProfile) -> str:
    return f"{seconds / profile.seconds:.1%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(profile: RunProfile, most: int | None = 20) -> Group:
    """To print by ``rich.print``. Of the dispatches it shows the ``most`` that took longest; None
    shows all, in their order. Brackets in names are no markup."""
    head = [Text(line) for line in lines(profile)]
    return Group(*head, *(rich_table(each) for each in tables(profile, most)))


def rich_table(text: TextTable) -> Table:
    """One of its tables."""
    made = Table(
        title=Text(text.title), title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    for at, column in enumerate(text.columns):
        is_name = at < text.names
        made.add_column(
            column,
            justify="left" if is_name else "right",
            overflow="fold",
            no_wrap=not is_name,
            header_style="dim",
        )
    for row in text.rows:
        made.add_row(*map(Text, row))
    return made
