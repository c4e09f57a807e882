"""The command as a whole: version, errors as one line, plugin commands."""

from __future__ import annotations

import builtins
import io
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
import typer
from tflgpu.__main__ import main
from tflgpu.cli import console
from tflgpu.cli.app import COMMANDS, make_app
from tflgpu.errors import ModelError, OptionError, PluginError
from tflgpu.plugins import registry as plugins
from typer.testing import CliRunner

from tests.cli.cli_helpers import Hooks, Tflgpu
from tests.running import raising
from tests.small_models import small_model, tensor_of


def test_the_script_is_main() -> None:
    """As the project says it: what is installed may be older."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (target,) = re.findall(r'^tflgpu = "(.*)"$', project, re.MULTILINE)
    assert EntryPoint("tflgpu", target, "console_scripts").load() is main


def test_version(tflgpu: Tflgpu) -> None:
    result = tflgpu("--version")
    assert result.exit_code == 0
    assert result.stdout == f"tflgpu {version('tflgpu')}\n"


def test_without_arguments_there_is_help(tflgpu: Tflgpu) -> None:
    ran = tflgpu()
    output = ran.stdout + ran.stderr
    for command in ("devices", "run", "inspect", "demo"):
        assert command in output


def test_an_error_is_one_line_and_exit_code_2(tflgpu: Tflgpu, tmp_path: Path) -> None:
    result = tflgpu("run", tmp_path / "absent.tflite")
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error:")
    assert "absent.tflite" in line
    assert "no such file" in line


def test_debug_lets_the_error_through(tflgpu: Tflgpu, tmp_path: Path) -> None:
    result = tflgpu("--debug", "run", tmp_path / "absent.tflite", crash=True)
    assert isinstance(result.exception, ModelError)


def test_long_errors_are_cut(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    def command(app: Any) -> None:
        def long() -> None:
            raise PluginError("lengthy " * 500)

        app.command()(long)

    install(cpu_ref=cpu_ref, toy=Hooks(register_commands=command))
    result = tflgpu("long")
    assert result.exit_code == 2
    assert len(result.stderr) < 1000
    assert "more characters; --debug" in result.stderr


def test_plugins_add_commands(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    def command(app: typer.Typer) -> None:
        def hello(name: str) -> None:
            typer.echo(f"hello {name}")

        app.command()(hello)

    install(cpu_ref=cpu_ref, toy=Hooks(register_commands=command))
    assert tflgpu("hello", "world").stdout == "hello world\n"


def test_a_plugin_that_fails_at_it_is_named(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    install(cpu_ref=cpu_ref, toy=Hooks(register_commands=raising(RuntimeError("boom"))))
    assert tflgpu("--version").stderr == ""  # which asks for no plugin's commands
    result = tflgpu("--help")
    assert result.exit_code == 0
    assert "plugin toy" in result.stderr
    assert "boom" in result.stderr


def test_clashing_plugins_leave_the_command_usable(
    tflgpu: Tflgpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_registry", None)
    monkeypatch.setattr(
        plugins,
        "Registry",
        raising(PluginError("backend x is registered by plugin a and by plugin b")),
    )
    assert tflgpu("--version").exit_code == 0
    result = tflgpu("devices")
    assert result.exit_code == 2
    assert "plugin a" in result.stderr


def test_python_runs_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tflgpu", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"tflgpu {version('tflgpu')}\n")


def test_ctrl_c_while_modules_are_imported_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str, *rest: object) -> object:
        if name == "tflgpu.cli.app":
            raise KeyboardInterrupt
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_the_version_imports_no_command() -> None:
    code = (
        "import sys\n"
        "from tflgpu.__main__ import main\n"
        "sys.argv = ['tflgpu', '--version']\n"
        "main()\n"
        "print(*sorted(n for n in sys.modules if n.startswith(('tflgpu', 'numpy', 'typer'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, loaded = done.stdout.splitlines()
    assert shown == f"tflgpu {version('tflgpu')}"
    assert loaded.split() == ["tflgpu", "tflgpu.__main__", "tflgpu.errors"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen(name: str) -> None:
    """With what each option takes; 80 columns and 40 lines."""
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    lines = runner.invoke(make_app(), [name, "--help"]).stdout.splitlines()
    assert lines[0].startswith(f"Usage: root {name}")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_list_of_commands_is_whole() -> None:
    """Each is a module's function, in help of one line each, which is not cut."""
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    text = runner.invoke(make_app(), ["--help"]).stdout
    for name, said in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(said)}$", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("devcies",), "Did you mean 'devices'?"),
        (("run", "MODEL", "--precision", "f23"), "(did you mean F32?)"),
        (("run", "MODEL", "--backend", "cpu_reg"), "(did you mean cpu_ref?)"),
        (("run", "MODEL", "--cpu-backend", "litret"), "(did you mean litert?)"),
        (("run", "MODEL", "--wait-type", "activ"), "(did you mean ACTIVE?)"),
        (("inspect", "MODEL", "--as", "adreno-74"), "(did you mean adreno-740?)"),
    ],
)
def test_what_was_meant(tflgpu: Tflgpu, scale: Path, arguments: tuple[str, ...], hint: str) -> None:
    result = tflgpu(*(scale if part == "MODEL" else part for part in arguments))
    assert result.exit_code == 2
    assert hint in result.stderr


# Streams that cannot take what a command writes: closed ones, full disks, few characters.


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


# Somebody who waits is told how far it is: by a callback, on a terminal, and in a pipe.


BACKENDS = ["opencl", "vulkan", "wgpu"]


def two_products() -> bytes:
    """Matrix products of two sizes, so that there are two kernels."""
    return small_model(
        {
            "x": (3, 7),
            "v": tensor_of((5, 7), data=np.ones((5, 7), np.float32)),
            "t": (3, 5),
            "w": tensor_of((11, 5), data=np.ones((11, 5), np.float32)),
            "y": (3, 11),
        },
        "t = FULLY_CONNECTED(x, v, -)",
        "y = FULLY_CONNECTED(t, w, -)",
    )


def prepared(backend: str, progress: Callable[[int, int], object]) -> None:
    with (
        tflgpu.GpuDelegate(backend=backend, progress=progress) as delegate,
        tflgpu.Interpreter(
            model_content=two_products(), experimental_delegates=[delegate]
        ) as interpreter,
    ):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callback_is_told_of_every_kernel(backend: str) -> None:
    said: list[tuple[int, int]] = []
    prepared(backend, lambda ready, whole: said.append((ready, whole)))
    assert said == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.needs("vulkan")
def test_a_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called = []

    def broken(ready: int, whole: int) -> None:
        called.append(ready)
        raise ValueError("the screen is gone")

    with caplog.at_level(logging.WARNING):
        prepared("vulkan", broken)
    assert called == [0]
    assert sum("the screen is gone" in r.getMessage() for r in caplog.records) == 1


def test_what_is_no_function_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(OptionError, match="function"):
        tflgpu.GpuDelegate(backend="cpu_ref", progress=wrong)


@pytest.mark.timeout(60)
def test_a_pipe_hears_of_it_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SILENCE", 0.05)
    start, said = time.monotonic(), ""
    with console.working("compiling"):
        console.kernels(3, 7)
        while said.count("3 of 7") < 2:
            time.sleep(0.01)
            captured = capsys.readouterr()
            said += captured.err
            assert not captured.out
    assert set(said.splitlines()) <= {"compiling ...", "compiling: 3 of 7 kernels ..."}
    assert len(said.splitlines()) <= (time.monotonic() - start) / 0.05 + 1


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.working("compiling"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.timeout(60)
def test_a_terminal_has_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    said = ""
    with console.working("preparing"):
        console.kernels(3, 7)
        while "3 of 7 kernels" not in said:
            time.sleep(0.01)
            said += capsys.readouterr().err
