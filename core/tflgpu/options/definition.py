"""`Option`: one line of `tflgpu.options.option_list`, from which everything else is made.

Keywords, dictionaries, TOML, environment variables, text, flags of the command line and the table
in docs/options.md all go by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from tflgpu.errors import OptionError
from tflgpu.errors.blame import did_you_mean
from tflgpu.options.kinds import OptionKind
from tflgpu.values import frozen

_KEY = "tflgpu"


@frozen
class Option:
    """One option.

    Attributes:
        name: As a keyword.
        kind: What it takes.
        default: Its value where neither the user nor the environment sets it.
        effect: What it does, in a sentence or two.
        origin: Where TFLite has it, and its default there if that is another; "" for our own.
    """

    name: str
    kind: OptionKind
    default: Any
    effect: str
    origin: str


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"TFLGPU_{name.upper()}"


def option(kind: OptionKind, default: Any, effect: str, *, origin: str = "") -> Any:
    """A field of `OptionList`; arguments as of `Option`."""
    return attrs.field(default=default, metadata={_KEY: (kind, effect, origin)})


def options_of(cls: type) -> Mapping[str, Option]:
    """The options of a class whose fields `option` made, by name, in its order."""
    fields = attrs.fields_dict(cls)
    return {
        name: Option(name, field.metadata[_KEY][0], field.default, *field.metadata[_KEY][1:])
        for name, field in fields.items()
    }


def unknown_option(
    name: str, known: Iterable[str], suffix: str = "", called: str = "", who: str = ""
) -> OptionError:
    """The error for an option that does not exist, with the one that was probably meant; ``called``
    is what it was called where it was given, and ``who`` begins the message."""
    listed = sorted(known)
    meant = did_you_mean(name, listed)
    there = ", ".join(listed)
    return OptionError(f"{who}unknown option {called or name}{meant}; there are {there}{suffix}")
