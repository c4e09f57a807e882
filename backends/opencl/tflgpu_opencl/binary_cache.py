"""Compiled programs on disk. A cache: whatever is wrong with it, the program is compiled."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs

_MAGIC = b"tflgpu opencl binary 1\n"
_DIGEST = hashlib.sha256().digest_size


def default_folder() -> Path:
    """``opencl`` in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    root = os.environ.get("TFLGPU_CACHE_DIR") or platformdirs.user_cache_dir("tflgpu", False)
    return Path(root) / "opencl"


def cache_key(*parts: str) -> str:
    """A file name for what depends on all of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class BinaryCache:
    """Binaries by key. Safe to share between threads and processes: files appear whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        """Where a binary is kept."""
        return self._folder / f"{key}.bin"

    def load(self, key: str) -> bytes | None:
        """A binary, or None where there is none or its file is damaged."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        binary = data[start:]
        if data[:start] != _MAGIC + hashlib.sha256(binary).digest():
            return None
        return binary

    def store(self, key: str, binary: bytes) -> None:
        """Keep a binary; a full or read-only disk is no error."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
                Path(temporary).replace(self.path(key))
            except OSError:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
