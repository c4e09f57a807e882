"""Bytes kept on disk from one process to the next: what drivers compile, what was measured.

A cache: where an entry is missing or damaged, its owner makes the bytes anew. This is the one place
that reads and writes it. An entry is a file of its own, which appears whole or not at all, and
whose digest covers its key too, so that a file under another's name is not taken for it. The digest
finds damage, not malice; against that, only folders that no other user can write to are read
(`private_folder`). Nothing is flushed to the disk: an entry cut short by a loss of power has a
wrong digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from tflgpu.cache import private_folder, whole_file
from tflgpu.cache.file_lock import one_at_a_time
from tflgpu.cache.whole_file import age_of
from tflgpu.errors.blame import LOG
from tflgpu.values import frozen

_FAMILY = b"tflgpu cache "
_MAGIC = _FAMILY + b"2\n"
_START = len(_MAGIC) + 2 * hashlib.sha256().digest_size + 1
#: Larger files are not read; programs and pipelines are kilobytes to megabytes.
MAX_BYTES = 256 << 20
_UNSAFE = ".unsafe"
_DISTRUST = 7 * 24 * 3600.0  # seconds
#: Seconds after which a process that has not finished reading has died of it.
_DEAD = 30.0
_MARK_BYTES = 1 << 20

#: Reading what was kept, or trying whether a fresh binary can be read.
Kind = Literal["load", "proof"]


def cache_folder(name: str, root: str | None = None) -> Path:
    """The folder ``name`` in ``root``, or else in TFLGPU_CACHE_DIR, or in the user's cache
    folder."""
    root = root or os.environ.get("TFLGPU_CACHE_DIR")
    if not root:
        import platformdirs  # which takes a hundredth of a second

        root = platformdirs.user_cache_dir("tflgpu", False)
    # No shell has seen what a Dockerfile or a TOML file says.
    # The `~` of an unknown user stays as it is.
    return Path(os.path.expanduser(root)) / name  # noqa: PTH111


def cache_key(*parts: str) -> str:
    """A file name for what depends on all of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """Bytes by key. Safe to share between threads and processes."""

    def __init__(self, folder: Path, suffix: str = ".bin") -> None:
        self._folder = folder
        self._suffix = suffix
        self._is_swept = False

    def beside(self, suffix: str) -> DiskCache:
        """A cache in the same folder, of files with another suffix."""
        return DiskCache(self._folder, suffix)

    def path(self, key: str) -> Path:
        """Where the bytes of a key are kept."""
        return self._folder / f"{key}{self._suffix}"

    def load(self, key: str) -> bytes | None:
        """The bytes, or None where there are none; a file that is not what was stored is
        dropped."""
        return self.load_all([key]).get(key)

    def load_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """As `load`, of those that there are. The folder is looked at once, which takes as long as
        reading one."""
        if not private_folder.usable(self._folder):
            return {}
        return {key: data for key in keys if (data := self._load(key)) is not None}

    def _load(self, key: str) -> bytes | None:
        path = f"{self._folder}{os.sep}{key}{self._suffix}"
        try:
            data = whole_file.content(path, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not whole_file.is_lack(error):
                self.drop(key, error.strerror or str(error))
            return None
        content = data[_START:]
        if data[:_START] == _header(key, content):
            with contextlib.suppress(OSError):
                os.utime(path)  # used now
            return content
        is_older = data.startswith(_FAMILY) and not data.startswith(_MAGIC)
        self.drop(key, "" if is_older else "it is damaged")
        return None

    def store(self, key: str, content: bytes) -> None:
        """Keep bytes. Where that cannot be done, by a full or read-only disk, they are not kept;
        a warning is logged once."""
        if len(content) > MAX_BYTES - _START or not private_folder.make(self._folder):
            return
        try:
            whole_file.write(self.path(key), (_header(key, content), content), lasting=False)
        except OSError as error:
            reason = error.strerror or str(error)
            private_folder.warn_once(
                self._folder,
                f"tflgpu: nothing is kept in the cache folder {self._folder}: {reason}",
            )

    def drop(self, key: str, why: str) -> None:
        """Remove an entry; ``why`` is logged, once for a folder as a warning, "" not at all."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()
        if why:
            LOG.debug("the cache entry %s is dropped: %s", self.path(key), why)
            private_folder.warn_once(
                self._folder,
                f"what cannot be used in the cache folder {self._folder} is dropped and made anew",
                f" (the first is {self.path(key).name}: {why})",
            )

    # What drivers read

    @contextlib.contextmanager
    def reading(self, keys: Sequence[str], kind: Kind = "load") -> Iterator[bool]:
        """While inside, a driver may read the bytes of ``keys``: should the process die, they are
        dropped at a start half a minute later. Gives False where that cannot be promised; then
        nothing may be handed to a driver, which could end every process from then on.

        ``kind`` is "proof" for bytes that a driver just made, read to see whether it can. Where
        that is fatal, there is no use in making them anew, and `is_unsafe` remembers it. The
        keys of a proof may be any names, such as one for all that a driver makes.
        """
        mark = self._mark(kind, keys) if keys else None
        try:
            yield not keys or mark is not None
        finally:
            if mark is not None:
                with contextlib.suppress(OSError):
                    mark.unlink()

    def sweep(self) -> None:
        """Drop what processes that died were reading, and what they left half written. Call it
        before `load` of what a driver is to read."""
        for kind, keys in self._deaths():
            for key in filter(_is_name, keys):
                if kind == "proof":
                    self._distrust(key)
                else:
                    self.drop(key, "tflgpu: a process died while a driver was reading it")
        if self._is_swept:
            return
        self._is_swept = True
        whole_file.sweep(self._folder)

    def is_unsafe(self, key: str) -> bool:
        """Whether a process died of a proof with this key in the last days. It may have been
        killed by chance in that moment, so this is not for ever."""
        try:
            return age_of(self._unsafe(key).stat()) < _DISTRUST
        except OSError:
            return False

    def building(self, key: str, limit: float = 30.0) -> contextlib.AbstractContextManager[bool]:
        """While inside, other processes that want to make the bytes of ``key`` wait, for at most
        ``limit`` seconds. Gives whether this one had to wait, so that they may be there now."""
        return one_at_a_time(self._folder, key, limit)

    def _mark(self, kind: Kind, keys: Sequence[str]) -> Path | None:
        """A file that names the keys, None where it cannot be written."""
        folder = self._folder / "marks"
        if not private_folder.make(self._folder) or not private_folder.make(folder):
            return None
        path = folder / f"{os.getpid()}-{os.urandom(8).hex()}.mark"
        try:
            with open(path, "x", encoding="utf-8", opener=_opener) as file:
                file.write("\n".join((kind, *keys)))
        except OSError as error:
            private_folder.warn_once(
                folder, f"the cache folder {folder} is not used: {error.strerror}"
            )
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return path

    def _deaths(self) -> Iterator[tuple[str, list[str]]]:
        """What processes that died were reading: the marks that they left."""
        folder = self._folder / "marks"
        for path in list(folder.glob("*.mark")) if private_folder.usable(folder) else ():
            with contextlib.suppress(OSError, ValueError):
                if age_of(path.lstat()) > _DEAD and not _runs(int(path.name.partition("-")[0])):
                    kind, *keys = whole_file.content(path, _MARK_BYTES).decode().split("\n")
                    yield kind, keys
                    path.unlink()

    def _distrust(self, key: str) -> None:
        path = self._unsafe(key)
        with contextlib.suppress(OSError):
            path.touch(0o600)
            LOG.warning(
                "tflgpu: a process died while a driver read what it had made itself, so its "
                "programs are not kept in %s for a week; delete %s to try again",
                self._folder,
                path.name,
            )

    def _unsafe(self, key: str) -> Path:
        return self._folder / f"{key}{_UNSAFE}"


def _runs(process: int) -> bool:
    """Whether a process of this machine is alive; False where that cannot be asked."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def is_entry(path: Path) -> bool:
    """Whether a file is an entry of some store."""
    with path.open("rb") as file:
        return file.read(len(_FAMILY)) == _FAMILY


def file_fault(path: Path) -> str:
    """What is wrong with an entry's file, "" where its digest and its name are right."""
    try:
        data = whole_file.content(path, MAX_BYTES)
    except OSError as error:
        return f"it cannot be used: {error.strerror or error}"
    if not data.startswith(_MAGIC):
        return "it is of another version"
    return "" if data[:_START] == _header(path.stem, data[_START:]) else "it is damaged"


def _header(key: str, content: bytes) -> bytes:
    name = key.encode()
    digest = hashlib.sha256(_MAGIC + len(name).to_bytes(8, "little") + name)
    digest.update(content)
    return _MAGIC + digest.hexdigest().encode() + b"\n"


def _is_name(key: str) -> bool:
    """Whether a key is the name of a file in the folder, and of none outside."""
    return bool(key) and not set(key) & set("/\\:\0") and key not in (".", "..")


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
