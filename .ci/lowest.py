"""The lowest versions that a package allows, one `name==version` a line, for pip.

Usage: PYTHON .ci/lowest.py [EXTRA ...], with the Python that the package is installed for. Read
from the requirements that pip sees, at each run, so that bounds and what is tried cannot differ.
Fails where a requirement has no lower bound.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.metadata import requires

_PACKAGE = "tflgpu"
# `Requires-Dist`: name[extras]bounds; marker
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def lowest(requirements: Sequence[str], extras: Sequence[str]) -> list[str]:
    """The pins of what a package always requires, and of some of its extras.

    Raises:
        SystemExit: a requirement without a bound of the form ``>=version``, or no such extra.
    """
    by_extra: dict[str, list[str]] = {"": []}
    for line in requirements:
        found = _EXTRA.search(line.partition(";")[2])
        by_extra.setdefault(found.group(1) if found else "", []).append(line)
    waiting, seen = ["", *extras], set[str]()
    pins: dict[str, str] = {}
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in by_extra:
            raise SystemExit(f"{_PACKAGE} has no extra {extra}")
        for line in by_extra[extra]:
            match = _REQUIREMENT.fullmatch(line.strip())
            assert match is not None, line
            name, wanted, bounds, _ = match.groups()
            if name == _PACKAGE:  # an extra may be made of others
                waiting += [e.strip() for e in (wanted or "").split(",")]
                continue
            bound = re.search(r">=\s*([0-9][0-9A-Za-z.]*)", bounds)
            if bound is None:
                raise SystemExit(f"{line}: no lower bound")
            pins[name] = bound.group(1)
    return [f"{name}=={version}" for name, version in sorted(pins.items())]


if __name__ == "__main__":
    print("\n".join(lowest(requires(_PACKAGE) or [], sys.argv[1:])))
