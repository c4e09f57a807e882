"""The installed distributions: their entry points and versions.

`importlib.metadata` knows it, and imports Python's package for e-mail to read a file's first lines.
Where all that there is are folders on ``sys.path``, as a rule, they are looked into here, by its
rules; where anything else says what is installed, it is asked.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tflgpu.values import frozen

_SUFFIXES = (".dist-info", ".egg-info")
#: Files that have a distribution's name and version, by the suffix of its folder.
_HEADS = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
_VALUE = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?$")


@frozen
class Dist:
    """A distribution, by its folder."""

    folder: Path

    @property
    def name(self) -> str:
        """Its name, as its author writes it.

        Raises:
            OSError, LookupError: its folder does not say.
        """
        return self._head("name")

    @property
    def version(self) -> str:
        """Its version.

        Raises:
            OSError, LookupError: its folder does not say.
        """
        return self._head("version")

    def _head(self, field: str) -> str:
        head = self.folder / _HEADS[self.folder.suffix.lower()]
        with head.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not line.strip():
                    break  # the description follows
                if colon and name.lower() == field:
                    return value.strip()
        raise LookupError(f"{self.folder} has no {field}")


@frozen
class Entry:
    """An entry point; what it has is `importlib.metadata.EntryPoint`'s."""

    name: str
    value: str
    dist: Dist

    def load(self) -> Any:
        """What it names, imported.

        Raises:
            ValueError: it names nothing that could be imported.
            Exception: importing it raises.
        """
        found = _VALUE.match(self.value)
        if found is None:
            raise ValueError(f"{self.value!r} is no module, and none with an attribute")
        names = filter(None, (found[2] or "").split("."))
        return reduce(getattr, names, importlib.import_module(found[1]))


def entry_points(group: str) -> list[Any]:
    """The entry points of a group: `Entry` values, or such as `importlib.metadata` has."""
    folders = _folders()
    if folders is None:
        return list(_metadata().entry_points(group=group))
    found: list[Any] = []
    for folder in folders.values():
        try:
            text = (folder / "entry_points.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:  # most have none
            continue
        found += [Entry(name, value, Dist(folder)) for name, value in _section(text, group)]
    return found


def version(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    folders = _folders()
    if folders is not None:
        folder = folders.get(_plain(distribution))
        try:
            return None if folder is None else Dist(folder).version
        except (OSError, LookupError):
            pass  # whoever reads more of such a file may know
    try:
        found: str = _metadata().version(distribution)
    except ImportError:  # which `PackageNotFoundError` is
        return None
    return found


def _metadata() -> ModuleType:
    from importlib import metadata  # which takes long to import, and is seldom needed

    return metadata


def _folders() -> dict[str, Path] | None:
    """The folders that say what is installed, by the distribution's plain name: of two with one
    name the one that Python would find. None where there is more than folders."""
    if any(
        finder is not PathFinder and hasattr(finder, "find_distributions")
        for finder in sys.meta_path
    ):
        return None
    found: dict[str, Path] = {}
    for place in sys.path:
        if place.lower().endswith(".egg"):
            return None
        try:
            with os.scandir(place or ".") as inside:
                named = [each for each in inside if each.name.lower().endswith(_SUFFIXES)]
        except NotADirectoryError:
            return None  # an archive
        except OSError:
            continue
        for each in named:
            if not each.is_dir():
                return None  # a file of old tools has it all, in their own way
            found.setdefault(_plain(each.name), Path(each.path))
    return found


def _plain(name: str) -> str:
    """A distribution's name as all its spellings have it; what follows a dash is its version."""
    for suffix in _SUFFIXES:
        name = name[: -len(suffix)].partition("-")[0] if name.lower().endswith(suffix) else name
    return re.sub(r"[-_.]+", "-", name).lower()


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for each in text.splitlines():
        line = each.strip()
        if line.startswith("[") and line.endswith("]"):
            inside = line[1:-1] == group
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()
