"""Folders that no other user can write to.

What lies in the cache is handed to drivers, which run it as code. So a folder is private only if
its owner alone can write to it, and the owner is this user (or the administrator, whose rights have
no limit anyway). A link is followed if the same users made it, as one to a larger disk would be.
This holds for the folder and for the one it lies in; folders farther up are the system's business,
and may be open to others if they are sticky, as the one for temporary files is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tflgpu.errors.blame import LOG

_HINT = "; `chmod go-w` helps, or a folder of your own in TFLGPU_CACHE_DIR"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_warned: set[tuple[str, str]] = set()


def warn_once(about: Path, text: str, details: str = "") -> None:
    """Log a warning, but only the first time that it is said of this path."""
    if (str(about), text) not in _warned:
        _warned.add((str(about), text))
        LOG.warning("%s%s", text, details)


def objection(status: os.stat_result) -> str:
    """Why a file or folder is not only ours, "" if it is. Windows gives no owners; there, a
    user's folders are closed to others by what they inherit."""
    me = getattr(os, "geteuid", None)
    if me is None:
        return ""
    if status.st_uid not in (me(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS and not stat.S_ISLNK(status.st_mode):
        return "other users can write to it"
    return ""


def usable(folder: Path) -> bool:
    """Whether the folder exists and is only ours. Says once why not."""
    try:
        reason = _parent_objection(folder.parent) or _objection_to(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        reason = error.strerror or str(error)
    return _accept(folder, reason)


def make(folder: Path) -> bool:
    """`usable`, after making what is missing, open to this user only."""
    missing = []
    above = folder
    try:
        while not os.path.lexists(above):
            missing.append(above)
            above = above.parent
        if len(missing) == 1 and (reason := _parent_objection(above)):
            return _accept(folder, reason)
        for each in reversed(missing):
            each.mkdir(0o700, exist_ok=True)
    except OSError as error:
        return _accept(folder, error.strerror or str(error))
    return usable(folder)


def _accept(folder: Path, reason: str) -> bool:
    if reason:
        more = "" if _HINT in reason else "; TFLGPU_CACHE_DIR can name another"
        warn_once(folder, f"tflgpu: the cache folder {folder} is not used: {reason}{more}")
    return not reason


def _parent_objection(parent: Path) -> str:
    """Others may write to a parent that is sticky: they cannot take away what is ours in it."""
    return _objection_to(parent, may_be_sticky=True)


def _objection_to(folder: Path, *, may_be_sticky: bool = False) -> str:
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        if reason := objection(status):
            return f"{folder} is a link, and {reason}{_HINT}"
        status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is no folder"
    if may_be_sticky and status.st_mode & stat.S_ISVTX:
        return ""
    reason = objection(status)
    return reason and f"of {folder}, {reason}{_HINT}"
