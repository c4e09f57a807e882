"""Driver versions: found in text, and compared number by number, so that "9" is below "10"."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from tflgpu.errors import PluginError
from tflgpu.values import frozen

Version = tuple[int, ...]

#: A number that is not part of a word, "v" or "r" before it aside: "D3D12" has none.
_VERSION = re.compile(r"(?<![\w.])[vr]?(\d+(?:\.\d+)*)", re.IGNORECASE)
_BOUND = re.compile(r"(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)")
_HOLDS: Mapping[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


def find_version(text: str) -> Version | None:
    """The first version in a text, None where there is none; trailing zeros are dropped, so
    that 24.0 and 24 are equal."""
    found = _VERSION.search(text)
    return None if found is None else _numbers(found.group(1))


def _numbers(text: str) -> Version:
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@frozen
class VersionRange:
    """Versions that satisfy every one of some bounds."""

    text: str
    bounds: tuple[tuple[str, Version], ...]

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read bounds such as ``">=535, <550.54.14"``.

        Raises:
            PluginError: something else is written there.
        """
        bounds = []
        for part in text.split(","):
            found = _BOUND.fullmatch(part.strip())
            if found is None:
                raise PluginError(f"{part.strip()!r} in {text!r} is no bound such as '>=24.0.1'")
            bounds.append((found.group(1), _numbers(found.group(2))))
        return cls(text, tuple(bounds))

    def __contains__(self, version: Version) -> bool:
        return all(_HOLDS[sign](version, bound) for sign, bound in self.bounds)
