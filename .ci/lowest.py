"""The lowest versions that pyproject.toml allows, one `name==version` a line, for pip.

Usage: python .ci/lowest.py [EXTRA ...]. Derived anew at each run, so that the bounds and what is
tried cannot differ. Fails where a requirement has no lower bound.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tomllib

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?\s*(.*)")


def lowest(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The pins of a project's dependencies and of some of its extras.

    Raises:
        SystemExit: a requirement without a bound of the form ``>=version``, or no such extra.
    """
    optional = project["optional-dependencies"]
    waiting, seen = list(extras), set[str]()
    listed = list(project["dependencies"])
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in optional:
            raise SystemExit(f"pyproject.toml has no extra {extra}")
        listed += optional[extra]
    pins: dict[str, str] = {}
    while listed:
        line = listed.pop()
        found = _REQUIREMENT.fullmatch(line.partition(";")[0].strip())
        assert found is not None, line
        name, wanted, bounds = found.groups()
        if name == project["name"]:
            for extra in (e.strip() for e in (wanted or "").split(",")):
                if extra not in seen:
                    seen.add(extra)
                    listed += optional[extra]
            continue
        bound = re.search(r">=\s*([0-9][0-9A-Za-z.]*)", bounds)
        if bound is None:
            raise SystemExit(f"{line}: no lower bound")
        pins[name] = bound.group(1)
    return [f"{name}=={version}" for name, version in sorted(pins.items())]


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    with (root / "pyproject.toml").open("rb") as file:
        loaded = tomllib.load(file)
    print("\n".join(lowest(loaded["project"], sys.argv[1:])))
