"""The `tflgpu` command: puts the subcommands together and turns errors into one line."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tflgpu.cli import console
from tflgpu.cli.benchmark import benchmark_command
from tflgpu.cli.cache import cache
from tflgpu.cli.compile import compile as compile_command
from tflgpu.cli.demo import demo
from tflgpu.cli.devices import devices
from tflgpu.cli.inspect import inspect
from tflgpu.cli.profiles import profiles
from tflgpu.cli.run import run
from tflgpu.cli.shader import shader
from tflgpu.errors import TflgpuError
from tflgpu.plugins.registry import registry


class _Commands(TyperGroup):
    """A group whose commands may raise `TflgpuError`."""

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
    """The application: the shipped commands, then the plugins'.

    A plugin that cannot add its commands is warned about; the others work.
    """
    app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)
    for command in (devices, run, inspect, profiles, shader, demo):
        app.command()(command)
    app.command("benchmark")(benchmark_command)
    app.command("compile")(compile_command)
    app.add_typer(cache, name="cache")
    try:
        failures = registry().register_commands(app)
    except TflgpuError as error:
        console.warn(f"no plugin can be used: {error}")
        return app
    for failure in failures:
        console.warn(f"{failure}; it adds no commands")
    return app


def main() -> None:
    """Entry point of the `tflgpu` script."""
    console.prepare_streams()
    make_app()(prog_name="tflgpu")


if __name__ == "__main__":
    main()
