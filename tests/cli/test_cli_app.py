"""The command as a whole: version, errors as one line, plugin commands."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_helpers import Hooks, Tflgpu
from tflgpu.__main__ import main
from tflgpu.cli.app import COMMANDS, make_app
from tflgpu.errors import ModelError, PluginError
from tflgpu.plugins import registry as plugins
from typer.testing import CliRunner


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
    def command(app: Any) -> None:
        raise RuntimeError("boom")

    install(cpu_ref=cpu_ref, toy=Hooks(register_commands=command))
    assert tflgpu("--version").stderr == ""  # which asks for no plugin's commands
    result = tflgpu("--help")
    assert result.exit_code == 0
    assert "plugin toy" in result.stderr
    assert "boom" in result.stderr


def test_clashing_plugins_leave_the_command_usable(
    tflgpu: Tflgpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clash(*arguments: object) -> None:
        raise PluginError("backend x is registered by plugin a and by plugin b")

    monkeypatch.setattr(plugins, "_registry", None)
    monkeypatch.setattr(plugins, "Registry", clash)
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
