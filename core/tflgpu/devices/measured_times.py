"""Measured times, kept on disk; a missing or damaged entry is measured again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tflgpu.cache.disk_cache import DiskCache, cache_folder, cache_key
from tflgpu.contract.device import DeviceInfo
from tflgpu.plugins.installed import version

#: A device that takes longer for the test plan is not one that was measured. Seconds.
_LONGEST = 3600.0


def default_folder() -> Path:
    """``devices`` in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    return cache_folder("devices")


def candidates_key(devices: Sequence[DeviceInfo], owners: Mapping[str, str]) -> str:
    """A key for a set of devices: another device, driver, or version of tflgpu or of a
    backend's distribution (``owners``, by backend) makes another key, and so does another
    machine, which may share a home folder with this one."""
    packages = {"tflgpu", *(owners[d.backend] for d in devices)}
    parts = [platform.node(), platform.system(), platform.machine(), str(os.cpu_count())]
    parts += sorted(f"{name} {version(name) or ''}" for name in packages)
    parts += [f"{d.backend}\n{d.index}\n{d.name}\n{d.driver}" for d in devices]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


#: Of the graphs by which figures are measured; other graphs, other figures.
_FIGURES = "2"


def figures_key(device: DeviceInfo, owner: str, settings: str) -> str:
    """A key for the figures of one device, as `candidates_key`; ``settings`` names what else they
    depend on: the precision, or the number of threads."""
    machine = candidates_key([device], {device.backend: owner})
    return cache_key("figures", _FIGURES, machine, settings)


def device_settings(precision: str) -> str:
    """What the figures of a device depend on besides the device: the precision."""
    return f"precision {precision}"


class MeasuredTimes:
    """Times, and other figures in seconds, by key. Safe to share between threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._disk = DiskCache(folder, ".json")

    def path(self, key: str) -> Path:
        """Where the times of a set of devices are kept."""
        return self._disk.path(key)

    def load(self, key: str, count: int) -> list[float] | None:
        """The seconds of ``count`` devices, in the key's order; None where there are none or
        they cannot be those of devices."""
        text = self._disk.load(key)
        if text is None:
            return None
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        seconds = content.get("seconds") if isinstance(content, dict) else None
        if isinstance(seconds, list) and all(map(_is_time, seconds)):
            return seconds if len(seconds) == count else None
        self._disk.drop(key, "it has no times")
        return None

    def store(self, key: str, devices: Sequence[DeviceInfo], seconds: Sequence[float]) -> None:
        """Keep times; a full or read-only disk is no error."""
        # The names are for people who look into the file.
        names = [f"{d.backend} {d.index} {d.name}" for d in devices]
        text = json.dumps({"devices": names, "seconds": list(seconds)}, indent=1)
        self._disk.store(key, text.encode())


def _is_time(value: object) -> bool:
    return type(value) is float and 0 < value < _LONGEST  # which NaN is not either
