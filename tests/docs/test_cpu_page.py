"""docs/cpu.md: its programs run, and print what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cpu.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def ran(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", folder / "model.tflite")
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.sub(r"\d+\.\d+\.\d+\)", "VERSION)", done.stdout.strip())


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = ran(BLOCKS[number], tmp_path, monkeypatch)
    _, after = PAGE.split(BLOCKS[number])
    promised = re.match(r"```\n\nprints `([^`]*)`", after)
    assert bool(promised) == bool(output)
    if promised is not None:
        said = re.sub(r"\d+\.\d+\.\d+\)", "VERSION)", " ".join(promised.group(1).split()))
        assert output == said


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
