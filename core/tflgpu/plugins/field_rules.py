"""What fields of a plugin's values have to be, as rows of a table.

`tflgpu.plugins.values` has the rows of what every plugin may give, and `tflgpu.plugins.ops` those
of ops, rules and passes, which are not imported for a plugin that brings none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from tflgpu.errors.blame import Refused, shown

#: Fields, what they have to be in words, and whether a value is that.
FieldRule = tuple[tuple[str, ...], str, Callable[[Any], bool]]


def is_text(value: object) -> bool:
    """Whether it is a text."""
    return isinstance(value, str)


def is_name(value: object) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_whole(value: object) -> bool:
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
