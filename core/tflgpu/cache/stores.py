"""The stores in a cache folder besides compiled models: a folder each, with `DiskCache` files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import attrs

from tflgpu.cache.age import age_of
from tflgpu.cache.disk_cache import file_fault, is_entry


@attrs.frozen
class Stored:
    """A file of a store.

    Attributes:
        path: Its place; the name of its folder is that of the store.
        nbytes: Its size.
        age: Seconds since it was last used.
    """

    path: Path
    nbytes: int
    age: float

    @property
    def fault(self) -> str:
        """Why the file is not a whole entry, "" where it is."""
        return file_fault(self.path)


def stored(root: Path, *, besides: str) -> list[Stored]:
    """The files of all stores in a cache folder but one, last used first. Other files are left
    out."""
    found = []
    with contextlib.suppress(OSError):
        folders = [each for each in os.scandir(root) if each.is_dir(follow_symlinks=False)]
        for folder in folders:
            if folder.name == besides:
                continue
            for each in os.scandir(folder.path):
                with contextlib.suppress(OSError):
                    if each.is_file(follow_symlinks=False) and is_entry(Path(each.path)):
                        status = each.stat(follow_symlinks=False)
                        found.append(Stored(Path(each.path), status.st_size, age_of(status)))
    return sorted(found, key=lambda each: (each.age, each.path))
