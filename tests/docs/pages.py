"""A page of the documentation: its programs, what it says that they print, and a run of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tflgpu.cli.app import make_app

from tests.language_models import bundles

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
    """The files that pages name, as `tflgpu demo --save` writes them: "model.tflite", which has
    seven operators, "first.tflite", "second.tflite", the picture "digit.png"."""
    pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
    make_app()(["demo", "--save", str(folder)], standalone_mode=False)


def put_language_model(folder: Path) -> None:
    """A small one in the place of the reader's own, "model.litertlm"."""
    sections = [(5, b"", ""), (4, bundles.pieces(), "")]
    content = bundles.litertlm([*sections, (3, bundles.model(), "tf_lite_prefill_decode")])
    (folder / "model.litertlm").write_bytes(content)
