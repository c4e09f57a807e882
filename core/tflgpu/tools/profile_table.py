"""A profile as tables on a terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tflgpu.runtime.profile import RunProfile
from tflgpu.tools.profile_rows import TextTable, lines, tables


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
