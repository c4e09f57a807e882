"""Locks between processes. They are the operating system's, so that they end with the process
that holds them, however it ends: no process id is compared, and nothing has to be cleaned up."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_NAPS = (0.002, 0.05)  # seconds between two attempts: the first, and the longest
_FAR = 2**30  # Windows locks bytes; a lock past the end leaves the file readable
#: Descriptors of locks. A child of a fork has copies, which would keep a lock after its owner has
#: died.
_open: set[int] = set()

if sys.platform == "win32":
    import msvcrt

    def _try(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _release(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


class FileLock:
    """A lock on an open file."""

    handle = -1  # also where `__init__` did not get far

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the file, which holds nothing yet.

        Raises:
            OSError: it cannot be opened.
        """
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        self._process = os.getpid()
        self.handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        _open.add(self.handle)

    def acquire(self) -> bool:
        """Whether the lock is held now; False where another holds it.

        Raises:
            OSError: there are no locks on this file system.
        """
        try:
            _try(self.handle)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Let go of the lock and of the file; twice is harmless. A signal's handler may end it
        anywhere: before the lock is let go of another call, or `__del__`, does that; behind it a
        descriptor is left, and no lock.
        """
        # In a child of a fork the descriptor is closed, and its number may be another file's.
        if self.handle < 0 or self._process != os.getpid():
            return
        with contextlib.suppress(OSError):
            _release(self.handle)
        handle, self.handle = self.handle, -1
        _open.discard(handle)
        with contextlib.suppress(OSError):
            os.close(handle)

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def exclusive(path: Path, limit: float) -> Iterator[bool]:
    """Hold a lock on a file while inside; gives whether another had it before.

    After ``limit`` seconds, or on a file system without locks, the block runs without the lock: it
    only saves work.
    """
    waited = False
    try:
        lock = FileLock(path)
    except OSError:
        yield waited
        return
    try:
        with contextlib.suppress(OSError):
            end, nap = time.monotonic() + limit, _NAPS[0]
            while not lock.acquire() and time.monotonic() < end:
                waited = True
                time.sleep(nap)
                nap = min(2 * nap, _NAPS[1])
        yield waited
    finally:
        lock.close()


def _forget_in_child() -> None:
    for handle in _open:
        with contextlib.suppress(OSError):
            os.close(handle)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
