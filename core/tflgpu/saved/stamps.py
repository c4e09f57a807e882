"""Digests of folders, which change when a package does.

Files of all kinds count, since code reads tables from some. Only what is in `__pycache__` does not:
Python makes that of the others. A `.pyc` elsewhere is code that has no source.

Reading hundreds of files takes longer than the rest of a start. So the digest of a state is kept,
under what the file system says of each file: its path, size, number, and when it and its entry were
last changed. The last of these no program can set. Where a file was changed in the last moments,
the next change might get the same time, so that nothing is kept then.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from operator import attrgetter
from pathlib import Path

from tflgpu.cache.disk_cache import DiskCache, cache_folder, cache_key

_DIGITS = 16
#: In a cache folder.
FOLDER = "stamps"
_SETTLED = 2.0  # seconds after which a file system gives a change another time

#: Path below the place, size, number, and nanoseconds of both times.
_Entry = tuple[str, int, int, int, int]


@cache
def stamp(place: Path) -> str:
    """A digest of the files in a folder, or of a file."""
    found = _entries(place)
    disk = DiskCache(cache_folder(FOLDER), ".stamp")
    key = cache_key("stamps 1", str(place.absolute()), repr(found))
    kept = disk.load(key)
    if kept is not None and len(kept) == _DIGITS:
        return kept.decode("ascii", "replace")
    made = _digest(place, found)
    newest = max((max(entry[3:]) for entry in found), default=0)
    if 0 < newest / 1e9 < time.time() - _SETTLED and found == _entries(place):
        disk.store(key, made.encode())
    return made


def _digest(place: Path, entries: list[_Entry]) -> str:
    digest = hashlib.sha256()
    for name, *_ in entries:
        content = (place / name if name else place).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGITS]


def _entries(place: Path) -> list[_Entry]:
    """Those of all files, in order. In one loop: there are hundreds, and every start asks."""
    if not place.is_dir():
        return [("", *_state(place.stat()))]
    found: list[_Entry] = []
    waiting = [("", str(place))]
    while waiting:
        below, folder = waiting.pop()
        with os.scandir(folder) as inside:
            for each in inside:
                name = each.name
                if name == "__pycache__":
                    continue
                if each.is_file():
                    found.append((below + name, *_state(each.stat())))
                elif each.is_dir():
                    waiting.append((f"{below}{name}/", each.path))
    found.sort()
    return found


#: What the file system says of a file. In the order of `_Entry`.
_state = attrgetter("st_size", "st_ino", "st_mtime_ns", "st_ctime_ns")
