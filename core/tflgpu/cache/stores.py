"""The files of a cache folder: compiled models, and the other stores, a folder each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from tflgpu.cache.age import age_of
from tflgpu.cache.disk_cache import is_entry
from tflgpu.values import frozen


@frozen
class StoredFile:
    """A file of a store.

    Attributes:
        path: Its place; the name of its folder is that of the store.
        nbytes: Its size.
        age: Seconds since it was last used.
    """

    path: Path
    nbytes: int
    age: float


def files_in(folder: Path | str, belongs: Callable[[os.DirEntry[str]], bool]) -> list[StoredFile]:
    """The files of a folder that belong to a store, last used first; none where there is no
    folder."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as inside:
        for entry in inside:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and belongs(entry):
                    status = entry.stat(follow_symlinks=False)
                    found.append(StoredFile(Path(entry.path), status.st_size, age_of(status)))
    return sorted(found, key=lambda each: (each.age, each.path))


def stored(root: Path, *, besides: str) -> list[StoredFile]:
    """The entries of all stores in a cache folder but one, last used first."""
    found: list[StoredFile] = []
    with contextlib.suppress(OSError), os.scandir(root) as inside:
        for folder in inside:
            if folder.is_dir(follow_symlinks=False) and folder.name != besides:
                found += files_in(folder.path, lambda entry: is_entry(Path(entry.path)))
    return sorted(found, key=lambda each: (each.age, each.path))
