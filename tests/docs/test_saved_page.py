"""docs/saved.md: its programs run one after another, and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "saved.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def said_after(block: str) -> str:
    found = re.match(r"```\s+prints `([^`]*)`", PAGE.partition(block)[2])
    return " ".join(found[1].split()) if found else ""


def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    assert len(BLOCKS) > 3
    for block in BLOCKS:
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert " ".join(done.stdout.split()) == said_after(block)
        assert said_after(block)


def test_the_commands_are_there(tmp_path: Path) -> None:
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    lines = [
        line.partition("#")[0].split()
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) == 5
    environment = {**os.environ, "TFLGPU_CACHE_DIR": str(tmp_path / "cache")}
    code = (
        "import sys; from tflgpu.cli.app import make_app\n"
        "for line in sys.argv[1:]: make_app()(line.split(), standalone_mode=False)"
    )
    # Any device will do: which one a machine has is not what the page is about.
    given = [" ".join(line[1:]).replace("opencl", "cpu_ref --device 1") for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.tflgpu").is_file()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()
