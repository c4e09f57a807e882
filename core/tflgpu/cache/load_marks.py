"""Marks the cache entries that drivers are reading, so that after a crash the entry that was being
read is known and dropped.

A driver that is handed a bad binary may not refuse it but end the process, and would do so at each
start. So a mark is a small locked file that names entries, made before a driver reads them and
removed after. A mark whose lock is free is that of a process that died, by a crash or by SIGKILL.
Locks do not outlive processes and are not copied to children (`file_lock`), so neither process ids
that come again, nor forks, nor containers that share the folder confuse this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from tflgpu.cache.file_lock import FileLock
from tflgpu.cache.private_folder import make, objection, usable, warn_once
from tflgpu.values import frozen

#: Reading what was kept, or trying whether a fresh binary can be read.
Kind = Literal["load", "proof"]

_SUFFIX = ".mark"
_MAX_BYTES = 1 << 20
_YOUNG = 60.0  # seconds that a mark may take from being made to being locked and written
#: Seconds after which a mark is that of a dead process where the file system has no locks.
_OLD = 600.0
_BUSY = 1.0  # seconds to wait for a lock that is only ever held for a moment


@frozen
class Death:
    """A process died while a driver was reading ``keys``."""

    kind: Kind
    keys: tuple[str, ...]


@contextlib.contextmanager
def marked(folder: Path, kind: Kind, keys: Sequence[str]) -> Iterator[bool]:
    """While inside, a mark names the keys. Gives False where none could be made."""
    path = folder / f"{os.urandom(8).hex()}{_SUFFIX}"
    lock = _make_mark(path, kind, keys) if make(folder) else None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            # Windows only removes what is closed. In the moment between the two the mark looks
            # like one of a dead process, and an entry may be made anew for nothing.
            if os.name == "nt":
                lock.close()
            with contextlib.suppress(OSError):
                path.unlink()
            lock.close()


def deaths(folder: Path) -> Iterator[Death]:
    """The deaths of processes that were reading entries. Each is forgotten when the next is asked
    for: another process that looks at the same time must not miss it before its entries are
    dropped."""
    if not folder.is_dir() or not usable(folder):
        return
    for path in _marks(folder):
        with contextlib.suppress(OSError):
            death, is_over = _look(path)
            if death is not None:
                yield death
            if is_over:
                path.unlink()


def _make_mark(path: Path, kind: Kind, keys: Sequence[str]) -> FileLock | None:
    try:
        lock = FileLock(path)
    except OSError as error:
        warn_once(path.parent, f"the cache folder {path.parent} is not used: {error.strerror}")
        return None
    # Who looks for deaths locks a mark for a moment.
    end = time.monotonic() + _BUSY
    with contextlib.suppress(OSError):  # no locks on this file system: see _OLD
        while not lock.acquire() and time.monotonic() < end:
            time.sleep(0.001)
    text = json.dumps({"kind": kind, "keys": list(keys)}).encode()
    try:
        os.lseek(lock.handle, 0, os.SEEK_SET)
        if os.write(lock.handle, text) == len(text):
            return lock
    except OSError:
        pass
    lock.close()  # a full disk
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _marks(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.name.endswith(_SUFFIX)]
    except OSError:
        return []


def _look(path: Path) -> tuple[Death | None, bool]:
    """The death that a mark tells of, and whether its process is gone."""
    lock = FileLock(path, create=False)
    try:
        status = os.fstat(lock.handle)
        age = time.time() - status.st_mtime
        try:
            if not lock.acquire():
                return None, False
        except OSError:
            if age < _OLD:
                return None, False
        os.lseek(lock.handle, 0, os.SEEK_SET)
        death = None if objection(status) else _parse(os.read(lock.handle, _MAX_BYTES))
        return death, death is not None or age > _YOUNG
    finally:
        lock.close()


def _parse(text: bytes) -> Death | None:
    try:
        content: Any = json.loads(text)
        kind, keys = content["kind"], content["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if kind not in ("load", "proof") or not isinstance(keys, list):
        return None
    return Death(kind, tuple(k for k in keys if isinstance(k, str)))
