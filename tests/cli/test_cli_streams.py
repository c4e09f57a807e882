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
