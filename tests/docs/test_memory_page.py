"""docs/memory.md: its programs run and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Page, printed

PAGE = Page("memory")


@pytest.mark.parametrize("number", range(3))
def test_the_programs_print_what_the_page_says(number: int, tmp_path: Path) -> None:
    program = PAGE.programs[number]
    said = re.match(r"\s+prints (?:`([^`]*)`|\n*```\n(.*?)\n```)", PAGE.after(program), re.DOTALL)
    said = said or re.match(r"\s+prints\s+```\n()(.*?)\n```", PAGE.after(program), re.DOTALL)
    assert said is not None
    assert printed(program, tmp_path) == (said[1] or said[2])


def test_every_program_is_looked_at() -> None:
    assert len(PAGE.programs) == 3
