"""docs/compatibility.md: its programs run, its commands are there, its tables are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, Page, printed, put_model
from tflgpu.cli.app import make_app
from tflgpu.compat.table import SHIPPED
from tflgpu.profiles import every
from typer.testing import CliRunner

PAGE = Page("compatibility")

#: Words that each program prints, in their order on the page.
PRINTED = (
    "test plan:",
    "pocl-cpu: PoCL on the CPU",
    "tflite-gpu 7 of 7",
    "7 of 7 operators run on vulkan (the GPU of my board, by its profile, f32)",
)


def test_every_program_is_looked_at() -> None:
    assert len(PAGE.programs) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    # Whatever devices there are, the reference takes the shortest to open.
    variables = {"TFLGPU_BACKEND": "cpu_ref", "TFLGPU_CACHE_DIR": str(tmp_path)}
    assert PRINTED[number] in printed(PAGE.programs[number], tmp_path, **variables)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE.text, re.DOTALL)
    commands = [line.split("#")[0].split() for line in shell.splitlines()]
    assert len(commands) == 3
    for _, *arguments in commands:
        result = CliRunner().invoke(make_app(), arguments)
        assert result.exit_code == 0, result.output


def test_the_table_of_entries() -> None:
    section = PAGE.text.split("## The database")[1].split("```python")[0]
    named = re.findall(r"`([a-z0-9-]+)`", section.split("|---|---|")[1])
    assert sorted(named) == sorted(entry.name for entry in SHIPPED)


def test_profiles_that_are_named_are_there() -> None:
    known = {profile.name for profile in every()}
    assert set(re.findall(r"--as ([a-z0-9-]+)", PAGE.text)) <= {*known, "list"}
    for profile in every():
        if profile.rules is not None:
            builtins = sum(not rule.get("custom") for rule in profile.rules.rules.values())
            assert re.search(rf"`{profile.name}`: [^*]*: {builtins} builtin ops", PAGE.text)


def test_files_that_are_named_are_there() -> None:
    for name in re.findall(r"`((?:core|tests)/[\w/.]+)`", PAGE.text):
        assert (ROOT / name).exists(), name
