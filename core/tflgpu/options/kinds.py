"""Kinds of options: the values that each takes, from Python and as text.

Every error names the option, or the environment variable or flag that set it, and says what it
would take.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from tflgpu.errors import OptionError
from tflgpu.errors.blame import did_you_mean, shown
from tflgpu.values import frozen

#: What a string may say for a truth value, in any case: options of TFLite's delegates that are
#: loaded from a library are all strings.
_WORDS = {
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
}
DIGITS = 10  # of a whole number; longer runs of digits are part of a name, if anything

_E = TypeVar("_E", bound=enum.Enum)


class OptionKind:
    """The values that an option takes.

    ``takes`` says it in a table; `read` takes a Python value and `parse` a text, and both raise
    `OptionError` where it is none of these; ``option`` is what the error calls the option.
    """

    takes = ""

    def read(self, option: str, value: object) -> Any:
        """The value that is kept."""
        raise NotImplementedError

    def parse(self, option: str, text: str) -> Any:
        """The value that text stands for."""
        return self.read(option, text)

    def shown(self, value: Any) -> str:
        """A value in words, as `parse` takes it."""
        return value.name if isinstance(value, enum.Enum) else str(value)


@frozen
class OrNone(OptionKind):
    """Something that may be left to others: None, and the text "none" or an empty one."""

    inner: OptionKind

    @property
    def takes(self) -> str:  # type: ignore[override]
        """The values of the inner kind."""
        return self.inner.takes

    def read(self, option: str, value: object) -> Any:
        """None, or a value of the inner kind."""
        return None if value is None else self.inner.read(option, value)

    def parse(self, option: str, text: str) -> Any:
        """An empty text or "none" is None; else the inner kind parses it."""
        is_none = text.strip().lower() in ("none", "")
        return None if is_none else self.inner.parse(option, text)

    def shown(self, value: Any) -> str:
        """The text "none", or the inner kind's text."""
        return "none" if value is None else self.inner.shown(value)


@frozen
class Truth(OptionKind):
    """True or False."""

    takes = "true, false"

    def read(self, option: str, value: object) -> bool:
        """The truth value of a bool, 0, 1, or a word (`truth`)."""
        return truth(option, value)

    def shown(self, value: Any) -> str:
        """The text "true" or "false"."""
        return str(value).lower()


@frozen
class Loss(OptionKind):
    """TFLite's older switch of precision: 1, 0, or -1 for neither."""

    takes = "true (1), false (0), none (-1)"

    def read(self, option: str, value: object) -> bool | None:
        """A truth value; None for None and -1."""
        if value is None or whole(value) == -1:
            return None
        if isinstance(value, str) and value.strip().lower() in ("-1", "none"):
            return None
        try:
            return truth(option, value)
        except OptionError:
            raise OptionError(
                f"{option} is True (1), False (0), or None (-1) to follow the priorities, not "
                f"{shown(value)}"
            ) from None

    def shown(self, value: Any) -> str:
        """The text "true", "false", or "none"."""
        return "none" if value is None else str(value).lower()


@frozen
class EnumMember(OptionKind):
    """A member of an enumeration: itself, its name in any case (with or without TFLite's prefix),
    or its code where these are TFLite's numbers."""

    members: type[enum.Enum]
    prefix: str = ""

    @property
    def takes(self) -> str:  # type: ignore[override]
        """The names."""
        return ", ".join(m.name for m in self.members)

    def read(self, option: str, value: object) -> Any:
        """The member that the value names (`member`)."""
        return member(option, self.members, value, self.prefix)


@frozen
class Flags(OptionKind):
    """Members of a flag: themselves, their sum as a number, or names between "|" or ","."""

    members: type[enum.Flag]
    prefix: str = ""

    @property
    def takes(self) -> str:  # type: ignore[override]
        """The names."""
        return ", ".join(m.name or "" for m in self.members if m.value)

    def read(self, option: str, value: object) -> enum.Flag:
        """The members, as one flag."""
        if isinstance(value, self.members):
            return value
        code = whole(value)
        if isinstance(value, str):
            text = value.strip()
            if text.isascii() and text.isdecimal() and len(text) <= DIGITS:
                code = int(text)
            else:
                return self._of_names(option, value)
        every = sum(m.value for m in self.members)
        if code is None or not 0 <= code <= every or code & ~every:
            raise self._wrong(option, value)
        return self.members(code)

    def shown(self, value: Any) -> str:
        """Names between "|"; "NONE" for none."""
        return "|".join(m.name or "" for m in self.members if m.value and m in value) or "NONE"

    def _of_names(self, option: str, text: str) -> enum.Flag:
        found = self.members(0)
        for part in text.replace(",", "|").split("|"):
            name = part.strip().upper().removeprefix(self.prefix)
            if name not in self.members.__members__:
                raise self._wrong(option, text)
            found |= self.members[name]
        return found

    def _wrong(self, option: str, value: object) -> OptionError:
        names = ", ".join(f"{m.name} ({m.value})" for m in self.members if m.value)
        meant = _meant(value, self.members)
        return OptionError(
            f"{option} is any of {names} and sums of them, not {shown(value)}{meant}"
        )


@frozen
class WholeNumber(OptionKind):
    """A whole number."""

    least: int = 1

    @property
    def takes(self) -> str:  # type: ignore[override]
        """From where on."""
        return f"a whole number from {self.least}"

    def read(self, option: str, value: object) -> int:
        """The number, if it is at least `least`."""
        count = whole(value)
        if count is None:
            raise OptionError(f"{option} is a whole number, not {shown(value)}")
        if count < self.least:
            raise OptionError(f"{option} is {shown(count)}; the least is {self.least}")
        return count

    def parse(self, option: str, text: str) -> int:
        """The number that the text's digits are."""
        return self.read(option, int(text) if is_count(text.strip()) else text)


@frozen
class Seconds(OptionKind):
    """A time: a number above 0, finite."""

    takes = "seconds above 0"

    def read(self, option: str, value: object) -> float:
        """The seconds, as a float."""
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        seconds = float(value) if is_number else math.nan  # type: ignore[arg-type]
        if not 0 < seconds < math.inf:
            raise OptionError(f"{option} is a number of seconds above 0, not {shown(value)}")
        return seconds

    def parse(self, option: str, text: str) -> float:
        """The seconds that the text says, as Python writes numbers."""
        number: object = text
        with suppress(ValueError):
            number = float(text)
        return self.read(option, number)


# What kinds are made of, and others ask too


def whole(value: object) -> int | None:
    """A whole number of any integer type, None for everything else; a truth value is none."""
    if isinstance(value, (bool, np.bool_, enum.Enum)) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of other than one number
        return None


def truth(option: str, value: object) -> bool:
    """A truth value as options take it: a boolean, 0 or 1, or a word such as "yes" in any case.

    Raises:
        OptionError: anything else; ``option`` is what the error calls it.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        known = _WORDS.get(value.strip().lower())
    else:
        number = whole(value)
        known = None if number is None else {0: False, 1: True}.get(number)
    if known is None:
        raise OptionError(
            f"{option} is True or False (also 1, 0, 'yes', 'no', 'on', 'off'), not {shown(value)}"
        )
    return bool(known)


def member(option: str, kind: type[_E], value: object, prefix: str = "") -> _E:
    """A member by itself, by name in any case (with or without TFLite's prefix), or by TFLite's
    code.

    Raises:
        OptionError: anything else.
    """
    if isinstance(value, kind):
        return value
    code = whole(value)
    if isinstance(value, str):
        name = value.strip().upper().removeprefix(prefix)
        if name in kind.__members__:
            return kind[name]
        code = int(name) if len(name) == 1 and name.isascii() and name.isdecimal() else None
    for one in kind:
        if code is not None and one.value == code:
            return one
    codes = isinstance(next(iter(kind)).value, int)
    meant = _meant(value, kind)
    raise OptionError(f"{option} is one of {_listed(kind, codes)}, not {shown(value)}{meant}")


def _meant(value: object, members: Iterable[enum.Enum]) -> str:
    known = [m.name for m in members]
    return did_you_mean(value.strip().upper(), known) if isinstance(value, str) else ""


def _listed(kind: Iterable[enum.Enum], codes: bool) -> str:
    return ", ".join(f"{m.name} ({m.value})" if codes else m.name for m in kind)


def is_count(text: str) -> bool:
    """Whether a text is a whole number from 0."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS
