"""A report as a table: on a terminal, and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tflgpu.compiler.report_rows import COLUMNS, notes, rows

if TYPE_CHECKING:
    from tflgpu.compiler.report_values import ReportFields


def table(report: ReportFields, *, every: bool = False) -> Table:
    """As `DelegationReport.table`. Names and reasons are shown as they are: brackets in them are no
    markup."""
    made = Table(
        title=Text(report.summary),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        caption=Text("\n".join(notes(report))),
        caption_justify="left",
    )
    for column in COLUMNS:
        right = column in ("time", "gain")
        made.add_column(
            column, justify="right" if right else "left", overflow="fold", header_style="dim"
        )
    for row in rows(report, every=every):
        made.add_row(*map(Text, row.cells))
    return made


def to_html(report: ReportFields) -> str:
    """A piece of HTML without scripts or styles of its own. All text is escaped: names of tensors,
    ops and devices come from files and drivers."""
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>"
        for row in rows(report)
    )
    below = "".join(f"<div>{escape(note)}</div>" for note in notes(report))
    return (
        f"<div><b>{escape(report.summary)}</b></div>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
    )
