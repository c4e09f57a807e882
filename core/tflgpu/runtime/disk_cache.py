"""Bytes kept on disk from one process to the next: what drivers compile. A cache: whatever is
wrong with it, its owner makes the bytes anew."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs

_MAGIC = b"tflgpu cache 1\n"
_DIGEST = hashlib.sha256().digest_size


def cache_folder(name: str) -> Path:
    """The folder ``name`` in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    root = os.environ.get("TFLGPU_CACHE_DIR") or platformdirs.user_cache_dir("tflgpu", False)
    return Path(root) / name


def cache_key(*parts: str) -> str:
    """A file name for what depends on all of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """Bytes by key. Safe to share between threads and processes: files appear whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        """Where the bytes of a key are kept."""
        return self._folder / f"{key}.bin"

    def load(self, key: str) -> bytes | None:
        """The bytes, or None where there are none or their file is damaged."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        content = data[start:]
        if data[:start] != _MAGIC + hashlib.sha256(content).digest():
            return None
        return content

    def store(self, key: str, content: bytes) -> None:
        """Keep bytes; a full or read-only disk is no error."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(content).digest() + content)
                Path(temporary).replace(self.path(key))
            except OSError:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
