"""docs/compatibility.md: its programs run, its commands are there, its tables are true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tflgpu.cli.app import make_app
from tflgpu.compat.table import SHIPPED
from tflgpu.profiles import every
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODEL = ROOT / "core/tflgpu/demo/digits.tflite"

#: Words that each program prints, in their order on the page.
PRINTED = (
    "test plan:",
    "pocl-cpu: PoCL on the CPU",
    "tflite-gpu 7 of 7",
    "7 of 7 operators run on vulkan (the GPU of my board, by its profile, f32)",
)


def test_every_program_is_looked_at() -> None:
    assert len(BLOCKS) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.tflite")
    # Whatever devices there are, the reference takes the shortest to open.
    environ = {**os.environ, "TFLGPU_BACKEND": "cpu_ref", "TFLGPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PRINTED[number] in done.stdout


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(MODEL, tmp_path / "model.tflite")
    monkeypatch.chdir(tmp_path)
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.split("#")[0].split() for line in shell.splitlines()]
    assert len(commands) == 3
    for _, *arguments in commands:
        result = CliRunner().invoke(make_app(), arguments)
        assert result.exit_code == 0, result.output


def test_the_table_of_entries() -> None:
    section = PAGE.split("## The database")[1].split("```python")[0]
    named = re.findall(r"`([a-z0-9-]+)`", section.split("|---|---|")[1])
    assert sorted(named) == sorted(entry.name for entry in SHIPPED)


def test_profiles_that_are_named_are_there() -> None:
    known = {profile.name for profile in every()}
    assert set(re.findall(r"--as ([a-z0-9-]+)", PAGE)) <= {*known, "list"}
    for profile in every():
        if profile.rules is not None:
            builtins = sum(not rule.custom for rule in profile.rules.rules.values())
            assert re.search(rf"`{profile.name}`: [^*]*: {builtins} builtin ops", PAGE)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for name in re.findall(r"`((?:core|tests)/[\w/.]+)`", PAGE):
        assert (ROOT / name).exists(), name
