"""docs/accuracy.md: its programs run, and print what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def printed(block: str, folder: Path) -> str:
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", folder / "model.tflite")
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_program_prints_what_the_page_says(tmp_path: Path) -> None:
    _, after = PAGE.split(BLOCKS[0])
    said = re.match(r"```\n\nprints\n\n```\n(.*?)\n```", after, re.DOTALL)
    assert said is not None
    assert printed(BLOCKS[0], tmp_path) == said.group(1)


def test_the_program_inside_litert(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    assert len(BLOCKS) == 2
    # A machine without any GPU driver leaves the model to LiteRT, and nothing is compared.
    assert printed(BLOCKS[1], tmp_path) in ("['accurate']", "[]")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
