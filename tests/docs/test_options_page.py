"""docs/options.md: its programs run and print what it says, and its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tflgpu.options import OTHER_NAMES, known_options
from tflgpu.options.page import renewed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n\nprints `(.*?)`\.\n", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    program, promised = BLOCKS[number]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == promised


def test_no_program_is_left_out() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == 2


def test_the_tables_are_those_of_the_definitions() -> None:
    assert renewed(PAGE) == PAGE, "run: python -m tflgpu.options.page docs/options.md"


def test_every_option_is_in_a_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert rows >= set(known_options()) | set(OTHER_NAMES)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
