"""Programs of pages about engines, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import Page, one_line

INTEGRATIONS = Page("docs/integrations.md")


def run_program(imported: str, folder: Path, page: Page = INTEGRATIONS) -> None:
    """Run the program that imports a module, and compare what it prints with what the page says."""
    (number,) = [n for n, text in enumerate(page.programs) if imported in text]
    file = folder / "program.py"
    file.write_text(page.programs[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    promised = page.promised(number)
    assert promised
    assert one_line(done.stdout).endswith(promised)
