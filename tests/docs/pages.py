"""A page of docs/: its programs, what it says that they print, and a way to run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_VERSION = re.compile(r"\d+\.\d+\.\d+\)")


class Page:
    """One page, by its name without the suffix."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        self.programs: list[str] = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    def after(self, program: str) -> str:
        """The page from a program's end on."""
        _, rest = self.text.split(program)
        return rest.removeprefix("```")

    def promised(self, program: str) -> str | None:
        """What the page says that a program prints, on one line and without versions; None where it
        says nothing."""
        found = re.match(r"\s+prints `([^`]*)`", self.after(program))
        return None if found is None else one_line(found[1])


def one_line(text: str) -> str:
    """Without line breaks, and without the version at the end of what is in parentheses."""
    return _VERSION.sub("VERSION)", " ".join(text.split()))


def put_model(folder: Path) -> None:
    """The model that pages call "model.tflite": seven operators."""
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", folder / "model.tflite")


def printed(program: str, folder: Path, **variables: str) -> str:
    """What a program prints that runs in a folder with a model."""
    put_model(folder)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
