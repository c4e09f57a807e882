"""Flags for the options of a delegate, made from their definition.

A command that is decorated with `with_delegate_flags` has ``--memory-limit`` for `memory_limit` and
so on; what was given arrives in its argument ``flags``, by option name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from tflgpu.cli import console
from tflgpu.options import OPTIONS, OTHER_NAMES

#: What was given: text by option name.
Flags = Mapping[str, str]
NO_FLAGS: Flags = {}

FILE = "options_file"
_ARGUMENT = "flags"
_HELP_ALL = "help_all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        console.plain(ctx.get_help())
        raise typer.Exit


def flag_of(option: str) -> str:
    """How errors call an option that was given on the command line."""
    return "--" + option.replace("_", "-")


def with_delegate_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each option of `DelegateOptions` that it has no argument for."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    kept = [p.replace(annotation=hints[n]) for n, p in own.items() if n != _ARGUMENT]
    flags = {name: _parameter(name, *text) for name, text in _texts().items() if name not in own}
    help_all = typer.Option(
        flag_of(_HELP_ALL),
        help="Show this message with the options of delegates, and exit.",
        callback=_show_all,
        is_eager=True,
    )
    flags[_HELP_ALL] = inspect.Parameter(
        _HELP_ALL,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, help_all],
    )

    @wraps(command)
    def decorated(**given: Any) -> None:
        said = {name: text for name in flags if (text := given.pop(name)) not in (None, False)}
        command(**given, flags=said)

    parameters = [*kept, *flags.values()]
    decorated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    decorated.__annotations__ = {p.name: p.annotation for p in parameters}
    return decorated


def _texts() -> Mapping[str, tuple[str, str]]:
    """By the name of an option: its help, and what it takes in a word."""
    found = {}
    for name, option in OPTIONS.items():
        choices = option.kind.takes.split(", ")
        is_choice = len(choices) > 1 and all(choice.isidentifier() for choice in choices)
        takes = "" if is_choice else f"{option.kind.takes}; "
        text = f"{option.effect}  [{takes}default: {option.kind.shown(option.default)}]"
        found[name] = (text.replace("`", ""), "|".join(choices).lower() if is_choice else "VALUE")
    for name, other in OTHER_NAMES.items():
        found[name] = (f"Stands for {other.stands_for}.".replace("`", ""), "VALUE")
    found[FILE] = ("A TOML file of options; flags and environment variables come first.", "FILE")
    return found


def _parameter(name: str, text: str, takes: str) -> inspect.Parameter:
    flag = typer.Option(flag_of(name), help=text, metavar=takes, hidden=True, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, flag],
    )
