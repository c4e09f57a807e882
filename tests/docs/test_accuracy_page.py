"""docs/accuracy.md: its programs run, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Page, printed

PAGE = Page("accuracy")


def test_the_first_program_prints_what_the_page_says(tmp_path: Path) -> None:
    program = PAGE.programs[0]
    said = re.match(r"\n\nprints\n\n```\n(.*?)\n```", PAGE.after(program), re.DOTALL)
    assert said is not None
    assert printed(program, tmp_path) == said.group(1)


def test_the_program_inside_litert(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    assert len(PAGE.programs) == 2
    # A machine without any GPU driver leaves the model to LiteRT, and nothing is compared.
    assert printed(PAGE.programs[1], tmp_path) in ("['accurate']", "[]")
