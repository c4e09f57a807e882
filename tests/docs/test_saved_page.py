"""docs/saved.md: its programs run one after another, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Page, one_line, put_model
from tflgpu.cli.app import make_app

PAGE = Page("saved")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model in it, and the current one."""
    put_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_the_programs_print_what_the_page_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(PAGE.programs) == 4
    for program in PAGE.programs:
        exec(compile(program, "docs/saved.md", "exec"), {})
        assert one_line(capsys.readouterr().out) == PAGE.promised(program)


def test_the_commands_are_there(folder: Path) -> None:
    lines = [
        line.partition("#")[0].split()
        for block in re.findall(r"```sh\n(.*?)```", PAGE.text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) == 5
    for name, *given in lines:
        assert name == "tflgpu"
        # Any device will do: which one a machine has is not what the page is about.
        text = " ".join(given).replace("opencl", "cpu_ref --device 1")
        make_app()(text.split(), standalone_mode=False)
    assert (folder / "model.tflgpu").is_file()
