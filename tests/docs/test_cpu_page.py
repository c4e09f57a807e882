"""docs/cpu.md: its programs run, and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Page, one_line, printed

pytest.importorskip("ai_edge_litert")

PAGE = Page("cpu")


@pytest.mark.parametrize("number", range(len(PAGE.programs)))
def test_the_programs_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)
    program = PAGE.programs[number]
    output = printed(program, tmp_path)
    assert (one_line(output) or None) == PAGE.promised(program)


def test_the_page_has_programs() -> None:
    assert len(PAGE.programs) == 4
    assert sum(PAGE.promised(program) is not None for program in PAGE.programs) == 2
