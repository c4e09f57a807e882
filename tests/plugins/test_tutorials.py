"""The tutorials show the example packages as they are: every file, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "tutorial-backend.md": "tflgpu-example-backend",
    "tutorial-op.md": "tflgpu-example-op",
}
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_files_are_shown_as_they_are(page: str) -> None:
    shown = dict(_FILE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))
    for path, text in shown.items():
        assert text == (ROOT / path).read_text(encoding="utf-8"), f"{page} shows an old {path}"
    package = ROOT / "tests" / "plugins" / PAGES[page]
    files = {
        p.relative_to(ROOT).as_posix()
        for p in package.rglob("*")
        if p.suffix in (".py", ".toml", ".txt") and p.name != "__init__.py"
    }
    assert files == set(shown), f"{page} shows every file of the package"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_install_what_they_use(page: str) -> None:
    """The suite needs pytest and hypothesis, which are in an extra."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (block,) = [b for b in text.split("```") if "pytest --pyargs tflgpu.conformance" in b]
    assert block.split("\n")[1] == f'pip install ./{PAGES[page]} "tflgpu[conformance]"'
