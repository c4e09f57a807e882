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

from tflgpu.options import OTHER_NAMES, known_options

#: What was given: text by option name.
Flags = Mapping[str, str]
NO_FLAGS: Flags = {}

FILE = "options_file"
_ARGUMENT = "flags"
_PANEL = "Delegate options (docs/options.md)"


def flag_of(option: str) -> str:
    """How errors call an option that was given on the command line."""
    return "--" + option.replace("_", "-")


def with_delegate_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each option of `DelegateOptions` that it has no argument for."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    kept = [p.replace(annotation=hints[n]) for n, p in own.items() if n != _ARGUMENT]
    texts = {name: option.effect for name, option in known_options().items()}
    texts |= {name: f"Stands for {other.stands_for}." for name, other in OTHER_NAMES.items()}
    texts[FILE] = "A TOML file of options; flags and environment variables come before it."
    made = {name: text.replace("`", "") for name, text in texts.items() if name not in own}

    @wraps(command)
    def decorated(**given: Any) -> None:
        flags = {name: given.pop(name) for name in made}
        said = {name: text for name, text in flags.items() if text is not None}
        command(**given, flags=said)

    parameters = [*kept, *(_parameter(name, text) for name, text in made.items())]
    decorated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    decorated.__annotations__ = {p.name: p.annotation for p in parameters}
    return decorated


def _parameter(name: str, text: str) -> inspect.Parameter:
    flag = typer.Option(flag_of(name), help=text, rich_help_panel=_PANEL, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, flag],
    )
