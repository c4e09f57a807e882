"""docs/options.md: its programs run and print what it says, and its tables are those of the
code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Page, printed
from tflgpu.options import OTHER_NAMES, known_options
from tflgpu.options.page import renewed

PAGE = Page("options")


@pytest.mark.parametrize("number", range(len(PAGE.programs)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    program = PAGE.programs[number]
    assert printed(program, tmp_path) == PAGE.promised(program)


def test_the_page_has_programs() -> None:
    assert len(PAGE.programs) == 3


def test_the_tables_are_those_of_the_definitions() -> None:
    assert renewed(PAGE.text) == PAGE.text, "run: python -m tflgpu.options.page docs/options.md"


def test_every_option_is_in_a_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE.text, re.MULTILINE))
    assert rows >= set(known_options()) | set(OTHER_NAMES)
