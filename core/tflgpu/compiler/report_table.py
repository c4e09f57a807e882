"""A report as a table on a terminal."""

from __future__ import annotations

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
