"""Shortens lists and names in messages, since a file or a caller may give thousands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
