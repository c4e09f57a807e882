"""Locks between processes. They are the operating system's, so that they end with the process
that holds them, however it ends: no process id is compared, and nothing has to be cleaned up.

The library filelock does the same; importing it takes as long as compiling a small model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tflgpu.cache import private_folder

_NAP = 0.01  # seconds between two attempts
_FLAGS = os.O_RDWR | os.O_CREAT
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def exclusive(path: Path, limit: float) -> Iterator[bool]:
    """Hold a lock on a file while inside; gives whether another had it before.

    After ``limit`` seconds, or on a file system without locks, the block runs without the lock: it
    only saves work.
    """
    try:
        handle = os.open(path, _FLAGS, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _acquire(handle, limit)
    finally:
        with contextlib.suppress(OSError):
            _unlock(handle)  # a child of a fork may have the file open still
        os.close(handle)


def one_at_a_time(folder: Path, key: str, limit: float) -> contextlib.AbstractContextManager[bool]:
    """While inside, other processes and threads that want to make the same thing of a cache folder
    wait, for at most ``limit`` seconds. Gives whether this one had to wait."""
    locks = folder / "locks"
    if not (private_folder.make(folder) and private_folder.make(locks)):
        return contextlib.nullcontext(False)
    # A few thousand files for all keys: two keys that share one only wait for nothing.
    return exclusive(locks / f"{hashlib.sha256(key.encode()).hexdigest()[:3]}.lock", limit)


def _acquire(handle: int, limit: float) -> bool:
    """Whether another process had the lock."""
    end, waited = time.monotonic() + limit, False
    while not waited or time.monotonic() < end:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            waited = True
            time.sleep(min(_NAP, limit))
        except OSError:  # no locks on this file system
            break
        else:
            break
    return waited
