"""Measured times on disk. A cache: whatever is wrong with it, devices are measured again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs

from tflgpu.runtime.protocols import DeviceInfo


def default_folder() -> Path:
    """``devices`` in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    root = os.environ.get("TFLGPU_CACHE_DIR") or platformdirs.user_cache_dir("tflgpu", False)
    return Path(root) / "devices"


def candidates_key(devices: Sequence[DeviceInfo], owners: Mapping[str, str]) -> str:
    """A key for a set of devices: another device, driver, or version of tflgpu or of a
    backend's distribution (``owners``, by backend) makes another key."""
    packages = {"tflgpu", *(owners[d.backend] for d in devices)}
    parts = sorted(f"{name} {_version(name)}" for name in packages)
    parts += [f"{d.backend}\n{d.index}\n{d.name}\n{d.driver}" for d in devices]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


class Remembered:
    """Times by key. Safe to share between threads and processes: files appear whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        """Where the times of a set of devices are kept."""
        return self._folder / f"{key}.json"

    def load(self, key: str, count: int) -> list[float] | None:
        """The seconds of ``count`` devices, in the key's order; None where there are none or
        the file is damaged."""
        try:
            content: Any = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        seconds = content.get("seconds") if isinstance(content, dict) else None
        if not isinstance(seconds, list) or len(seconds) != count:
            return None
        if not all(type(s) is float and math.isfinite(s) and s > 0 for s in seconds):
            return None
        return seconds

    def store(self, key: str, devices: Sequence[DeviceInfo], seconds: Sequence[float]) -> None:
        """Keep times; a full or read-only disk is no error."""
        # The names are for people who look into the file.
        names = [f"{d.backend} {d.index} {d.name}" for d in devices]
        text = json.dumps({"devices": names, "seconds": list(seconds)}, indent=1)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                Path(temporary).replace(self.path(key))
            except OSError:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
