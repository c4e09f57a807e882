"""docs/saved.md: its programs run one after another, and print what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tflgpu.cli.app import make_app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "saved.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def said_after(block: str) -> str:
    found = re.match(r"```\s+prints `([^`]*)`", PAGE.partition(block)[2])
    return " ".join(found[1].split()) if found else ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model in it, and the current one."""
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_the_programs_print_what_the_page_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        exec(compile(block, "docs/saved.md", "exec"), {})
        assert " ".join(capsys.readouterr().out.split()) == said_after(block)
        assert said_after(block)


def test_the_commands_are_there(folder: Path) -> None:
    lines = [
        line.partition("#")[0].split()
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) == 5
    for name, *given in lines:
        assert name == "tflgpu"
        # Any device will do: which one a machine has is not what the page is about.
        text = " ".join(given).replace("opencl", "cpu_ref --device 1")
        make_app()(text.split(), standalone_mode=False)
    assert (folder / "model.tflgpu").is_file()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / "docs" / target).exists()
