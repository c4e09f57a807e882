"""Calls a plugin's code so that an exception comes back as a value that names the plugin.

An `Exception` is taken for a fault of the code that was called. KeyboardInterrupt, SystemExit and
other exceptions that are no `Exception` go through: they are meant for the whole program, as are
those that a signal's handler raises.

Messages show values, names and lists by what stands here too: shortened, since a plugin, a file or
a caller may give thousands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeGuard

#: Where all of tflgpu says what a user should know, by levels of `logging`.
LOG = logging.getLogger("tflgpu")

_LINE = 200


class Refused(Exception):
    """A plugin broke the contract; the text says how."""


class Failed:
    """An exception, as a value."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __str__(self) -> str:
        return describe(self.error)


def describe(error: BaseException) -> str:
    """An exception in a line of a message: its type says much where its text is a bare key."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (even that is somebody else's code)
        return kind
    if isinstance(error, Refused):
        return text
    return f"{kind}: {text}" if text else kind


def in_a_line(error: BaseException) -> str:
    """An error's message as one line, for reports."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE else f"{text[: _LINE - 3]}..."


def shown(value: object) -> str:
    """A value as messages show it: cut where it is long, and safe where its ``repr`` raises."""
    text = attempt(repr, value)
    if isinstance(text, Failed):
        return f"a {type(value).__name__}"
    if "\n" in text:  # an array's
        text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def attempt(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of ``action``, or `Failed`."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return Failed(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint behind a misspelled name: " (did you mean opencl?)"; "" where it is like none."""
    import difflib  # nothing else needs it

    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


# What the fields of a plugin's values have to be

#: Fields, what they have to be in words, and whether a value is that.
FieldRule = tuple[tuple[str, ...], str, Callable[[Any], bool]]


def is_text(value: object) -> bool:
    """Whether it is a text."""
    return isinstance(value, str)


def is_name(value: object) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, which a truth value is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_fields(item: Any, rules: Iterable[FieldRule], what: str) -> None:
    """Hold a value's fields against the rows of its type.

    Raises:
        Refused: a field is not what it must be; names the item, as ``what`` has it, and the field.
    """
    for names, wanted, fits in rules:
        for name in names:
            value = attrgetter(name)(item)
            if not fits(value):
                raise Refused(f"{what}: {name} is {shown(value)}, not {wanted}")


_MOST = 12
_LONGEST = 80


def few(values: Iterable[object]) -> str:
    """Values with commas between them; of many the first, and how many there are."""
    found: Sequence[object] = tuple(values)
    if len(found) <= _MOST:
        return ", ".join(map(str, found))
    return f"{', '.join(map(str, found[:_MOST]))}, ... {len(found):,} in all"


def listed(values: Iterable[object]) -> str:
    """Sizes, axes or the like in brackets, as `few`."""
    return f"[{few(values)}]"


def clipped(name: str) -> str:
    """A name as messages show it: cut where a hostile file would fill the screen."""
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


def quoted(name: str) -> str:
    """A name, `clipped` and in quotes."""
    return repr(clipped(name))
