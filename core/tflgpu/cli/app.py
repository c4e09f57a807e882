"""The `tflgpu` command: puts the subcommands together and turns errors into one line."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from tflgpu.cli import console
from tflgpu.errors import TflgpuError
from tflgpu.plugins.registry import registry

#: The shipped commands in the order of the help: each is a function, or an application, of the
#: module of its name, which is imported when the command is called.
COMMANDS = {
    "devices": "List devices, what is missing, and which one is used.",
    "run": "Run a model: outputs, time, and what ran where.",
    "generate": "Answer a prompt by a language model.",
    "profile": "Show where the time of a run goes: kernels, copies, CPU.",
    "inspect": "Show a model's operators, and where each would run.",
    "benchmark": "Time models: latency or throughput, starts, memory, energy.",
    "check": "Check whether a device agrees with LiteRT.",
    "profiles": "List device profiles, for `inspect MODEL --as NAME`.",
    "compile": "Compile a model for a device, and save it in a file.",
    "tune": "Time kernels on a device, and keep the fastest.",
    "shader": "Print the kernels of an operator.",
    "cache": "List and clear what is kept on disk.",
    "demo": "Classify digits on every device there is.",
}


class _Commands(TyperGroup):
    """A group whose commands may raise `TflgpuError`: the shipped ones, then the plugins'."""

    _has_plugins = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, for help and completion."""
        self._add_plugins()
        return [*COMMANDS, *(name for name in self.commands if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; modules of others are not imported."""
        if cmd_name in COMMANDS:
            return self._shipped(cmd_name)
        self._add_plugins()
        if cmd_name not in self.commands:
            for name in COMMANDS:  # among which the one that was meant is looked for
                self._shipped(name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in the help."""
        others = {n: c.get_short_help_str(60) for n, c in self.commands.items()}
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(n, COMMANDS.get(n) or others[n]) for n in names])

    def _shipped(self, name: str) -> Any:
        if name not in self.commands:
            target = getattr(import_module(f"tflgpu.cli.{name}"), name)
            app = target
            if not isinstance(target, typer.Typer):
                app = _typer()
                app.command(name)(target)
            self.commands[name] = get_command(app)
        return self.commands[name]

    def _add_plugins(self) -> None:
        """Add the plugins' commands. A plugin that cannot add its own is warned about; the others
        work."""
        if self._has_plugins:
            return
        self._has_plugins = True
        app = _typer()
        try:
            failures = registry().register_commands(app)
        except TflgpuError as error:
            console.warn(f"no plugin can be used: {error}")
            return
        for failure in failures:
            console.warn(f"{failure}; it adds no commands")
        self.commands = {**get_group(app).commands, **self.commands}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error is one red line, or with --debug a traceback."""
        try:
            return super().invoke(ctx)
        except TflgpuError as error:
            if ctx.params.get("debug"):
                raise
            console.fail(str(error))
            raise typer.Exit(console.ERROR) from error


def _version(wanted: bool) -> None:
    if wanted:
        console.say(f"tflgpu {version('tflgpu')}")
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run TensorFlow Lite models on any GPU."""


def make_app() -> typer.Typer:
    """The application: the shipped commands, then the plugins'."""
    app = _typer(cls=_Commands, no_args_is_help=True)
    app.callback()(_root)
    return app


def _typer(**settings: Any) -> typer.Typer:
    """An application whose help is plain text, which is half as long as typer's boxes."""
    completes = "cls" in settings
    return typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=completes,
        **settings,
    )


def main() -> None:
    """Entry point of the `tflgpu` script."""
    console.prepare_streams()
    make_app()(prog_name="tflgpu")


if __name__ == "__main__":
    main()
