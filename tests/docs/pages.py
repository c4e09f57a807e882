"""A page of the documentation: its programs, what it says that they print, and a run of one."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tflgpu.demo import load_digits

ROOT = Path(__file__).parents[2]
_VERSION = re.compile(r"\d+\.\d+\.\d+\)")
_PRINTS = re.compile(r"```\s+prints\s+(?:```\n(.*?)\n```|`([^`]*)`)", re.DOTALL)


class Page:
    """One page, by its path from the root."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.programs: list[str] = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    def promised(self, number: int) -> str | None:
        """What the page says that a program prints, on one line and without versions; None where it
        says nothing."""
        found = _PRINTS.match(self.text.split(self.programs[number])[1])
        return None if found is None else one_line(found[1] or found[2])

    def run(self, number: int, capsys: pytest.CaptureFixture[str]) -> str:
        """What a program prints, as one line."""
        exec(compile(self.programs[number], self.path, "exec"), {"__name__": "__main__"})
        return one_line(capsys.readouterr().out)


def one_line(text: str) -> str:
    """Without line breaks, and without the version at the end of what is in parentheses."""
    return _VERSION.sub("VERSION)", " ".join(text.split()))


def put_model(folder: Path) -> None:
    """The model that pages call "model.tflite": seven operators; and the picture "digit.png"."""
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", folder / "model.tflite")
    (folder / "digit.png").write_bytes(_digit())


def _digit() -> bytes:
    image = pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
    pixels = np.rint(load_digits().images[0, 0, :, :, 0] * 255).astype(np.uint8)
    written = io.BytesIO()
    image.fromarray(pixels).resize((160, 160), image.Resampling.NEAREST).save(written, "PNG")
    return written.getvalue()
