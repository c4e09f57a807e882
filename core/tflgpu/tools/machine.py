"""Where and with what something was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs

from tflgpu.plugins.registry import registry

_PACKAGES = ("tflgpu", "numpy", "ai-edge-litert", "pyopencl", "vulkan", "wgpu")


def machine(backends: Iterable[str] | None = None) -> dict[str, Any]:
    """The machine, as far as it explains results.

    Args:
        backends: Those whose devices are listed; None is all. Asking one that was not used loads
            its drivers, which may take seconds.
    """
    known = registry()
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": usable_cpus(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "devices": [
            attrs.asdict(device)
            for name in (known.backends if backends is None else backends)
            for device in known.probe(name).devices
        ],
    }


def versions() -> dict[str, str]:
    """Of Python and of everything that takes part."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def usable_cpus() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
