"""``python -m tflgpu.options.page docs/options.md``: the tables of the page on options, made anew.

What lies between the marks follows from the definitions; a test says when it is due.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tflgpu.options.definition import Option
from tflgpu.options.option_list import OPTIONS
from tflgpu.options.other_names import OTHER_NAMES, REFUSED
from tflgpu.options.sources import OTHER_VARIABLES

_BEGIN, _END = "<!-- tables: python -m tflgpu.options.page docs/options.md -->", "<!-- end -->"
_AGREE = (
    "Two names for one thing may both be given where they agree; where they do not, the error "
    "names both. All are keywords, variables and flags like the options themselves."
)


def tables() -> str:
    """All of them."""
    return "\n\n".join(
        (
            "## All options",
            options_table(OPTIONS),
            "## TFLite's other names",
            _AGREE,
            _table(
                ("Name", "Takes", "Stands for", "In TFLite"),
                (
                    (f"`{o.name}`", o.kind.takes, o.stands_for, o.origin)
                    for o in OTHER_NAMES.values()
                ),
            ),
            "Refused by name, with the reason:",
            _table(
                ("Name", "Why, and what to do"), ((f"`{n}`", why) for n, why in REFUSED.items())
            ),
            "## Other environment variables",
            _table(("Variable", "What it is"), ((f"`{n}`", w) for n, w in OTHER_VARIABLES.items())),
        )
    )


def options_table(options: Mapping[str, Option]) -> str:
    """One row an option."""
    rows = (
        (f"`{o.name}`", o.kind.takes, f"`{o.kind.shown(o.default) or 'empty'}`", o.effect, o.origin)
        for o in options.values()
    )
    return _table(("Option", "Takes", "Default", "What it does", "In TFLite"), rows)


def renewed(page: str) -> str:
    """A page with its tables made anew."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n\n{tables()}\n\n{_END}{after}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = tuple(head)
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Rewrite the file that is named."""
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
