"""docs/async.md: its programs run, and print what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "async.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(7))
def test_the_programs_print_what_the_page_says(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 7
    block = BLOCKS[number]
    said = re.match(r"```\s+prints `([^`]*)`", PAGE.partition(block)[2])
    assert said
    exec(compile(block, "docs/async.md", "exec"), {})
    assert capsys.readouterr().out.strip() == said[1]


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()


@pytest.mark.parametrize("anchor", re.findall(r"\]\(#([^)]+)\)", PAGE))
def test_sections_are_there(anchor: str) -> None:
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z ]", "", h.lower()).replace(" ", "-") for h in headings}
