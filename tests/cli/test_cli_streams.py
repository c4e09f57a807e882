"""Streams that cannot take what a command writes: closed ones, full disks, few characters."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
import typer
from tflgpu.cli import console


def test_characters_that_a_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    console.prepare_streams()
    table = console.table("ü", "name")
    table.add_row("日本")
    console.show(table)
    console.say("ß")
    text = written.getvalue().decode("ascii")
    assert r"\xfc" in text
    assert r"\u65e5\u672c" in text
    assert text.endswith("\\xdf\n")
    console.fail("nobody sees it")  # to a stream that is closed
    sys.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("write", [console.say, console.plain, console.show_json])
def test_a_full_disk_is_one_line(
    write: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(write)
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 (closing it raises too)
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(typer.Exit) as raised:
        write("results")
    assert raised.value.exit_code == console.ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: the output cannot be written: {os.strerror(28)}"
    with pytest.raises(OSError, match="space"):
        full.close()


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """A model from anywhere must not move the cursor or rename the window by a tensor's name."""
    name = "x\x1b[31m\x07\r\x9b2J\x7f\ty"
    table = console.table(name, "name")
    table.add_row(name)
    console.show(table)
    console.say(name)
    console.plain(name)
    console.fail(name)
    console.warn(name)
    written = capsys.readouterr()
    lines = [*written.out.splitlines(), *written.err.splitlines()]
    assert len([line for line in lines if r"x\x1b[31m\x07\r\x9b2J\x7f" in line]) == 4, lines
    # rich drops some of a cell's itself, and an error is one line.
    assert r"x\x1b[31m\x9b2J\x7f" in written.out
    assert r"x\x1b[31m\x07 \x9b2J\x7f y" in written.err
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in "".join(lines))


def test_titles_do_not_fold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/path/that/is/longer/than/any/of/its/table/and/the/terminal.tflite"
    table = console.table(path, "name")
    table.add_row("x")
    console.show(table)
    assert capsys.readouterr().out.splitlines()[0] == path


@pytest.mark.parametrize(("width", "is_whole"), [("60", True), ("30", False)])
def test_names_to_be_copied_fold_last_and_are_never_cut(
    width: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    name = "a-name-of-twenty-one-"
    table = console.table("", "name", "what", "which", whole=("name",))
    table.add_row(name, "words " * 30, "x")
    console.show(table)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(name) for line in lines) == is_whole
    at = lines[0].index("what")
    assert "".join(line[:at].strip() for line in lines[1:]) == name
