"""Files that are written completely or not at all, and are only read if they belong to this
user."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tflgpu.cache import private_folder


def age_of(status: os.stat_result) -> float:
    """Seconds since a file was last used or written.

    A time to come is of before the clock was set back. Such a file counts as long unused: else it
    would stay the youngest until the clock is there again, and newer files would be dropped before
    it.
    """
    return abs(time.time() - status.st_mtime)


#: What a file is called until it is whole.
TEMPORARY = ".tmp"
#: Seconds after which such a file is one that a dead process left.
_LEFT = 3600.0
_LACKING = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})


def is_lack(error: BaseException | None) -> bool:
    """Whether a file could not be read because the process lacked memory or descriptors at that
    moment."""
    return isinstance(error, OSError) and error.errno in _LACKING


# A pipe must not be waited for.
_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


def opened(path: str | Path) -> tuple[int, os.stat_result]:
    """A descriptor of a file that is one, and only ours, to be closed by the caller; and what the
    file is.

    Raises:
        OSError: it is not, or cannot be read.
    """
    try:
        handle = os.open(path, _FLAGS)
    except ValueError as error:  # a name with a null in it
        raise OSError(str(error)) from error
    except OSError:
        if Path(path).is_symlink():  # what it leads to may be another file by now
            raise OSError("it is a symbolic link; name the file that it leads to") from None
        raise
    status = os.fstat(handle)
    reason = private_folder.objection(status)
    if not stat.S_ISREG(status.st_mode):
        reason = "it is no file"
    if reason:
        os.close(handle)
        raise OSError(reason)
    return handle, status


def content(path: str | Path, most: int) -> bytes:
    """The bytes of a file that is only ours, and not larger than ``most`` bytes.

    Raises:
        OSError: it is no such file, or cannot be read.
    """
    handle, status = opened(path)
    try:
        if status.st_size > most:
            raise OSError(f"it has {status.st_size} bytes")
        # Python first makes room for as much as it is asked for. A read may give less.
        found = os.read(handle, status.st_size)
        while len(found) < status.st_size:
            more = os.read(handle, status.st_size - len(found))
            if not more:
                break
            found += more
        return found
    finally:
        os.close(handle)


def mapped(path: Path) -> memoryview:
    """The bytes of a file that is only ours, read when they are looked at. They stay the same where
    another file takes the name.

    Raises:
        OSError: it is no such file, or cannot be read.
    """
    handle, status = opened(path)
    try:
        if not status.st_size:  # which cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(handle)


def write(path: Path, pieces: Iterable[bytes | memoryview], *, lasting: bool = True) -> None:
    """Write a file, open to this user only. It takes the name when all of it is there, and on the
    disk where it is to be ``lasting``.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    if "\0" in str(path):
        raise OSError("embedded null byte")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(kind := path.lstat().st_mode) and not stat.S_ISLNK(kind):
            # To take its name would be the end of a device (/dev/null) or a pipe.
            raise OSError("it is there, and is no file")
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=TEMPORARY)  # of mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def sweep(folder: Path) -> None:
    """Remove what processes that died left half written in a folder."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{TEMPORARY}"):
            if age_of(path.lstat()) > _LEFT:
                path.unlink()
