"""A report as a table in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tflgpu.compiler.report_rows import COLUMNS, notes, rows

if TYPE_CHECKING:
    from tflgpu.compiler.report_values import ReportFields


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
