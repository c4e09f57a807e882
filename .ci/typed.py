"""Fail where a package of a wheel has no `py.typed`: `python .ci/typed.py WHEEL`."""

from __future__ import annotations

import sys
import zipfile


def untyped(names: list[str]) -> list[str]:
    """Top-level packages among a wheel's file names that lack the marker."""
    packages = {n.split("/")[0] for n in names if n.count("/") == 1 and n.endswith("/__init__.py")}
    return sorted(p for p in packages if f"{p}/py.typed" not in names)


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        missing = untyped(wheel.namelist())
    if missing:
        raise SystemExit(f"no py.typed in {', '.join(missing)}")
