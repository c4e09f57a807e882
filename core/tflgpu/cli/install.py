"""The command that installs a missing package, ready to paste."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from tflgpu.contract.device import BackendInfo
from tflgpu.plugins.registry import Registry, missing_driver


def packages_of(distribution: str, extra: str) -> list[str]:
    """The requirements that an extra of an installed distribution stands for.

    Naming them works wherever the distribution itself came from; ``distribution[extra]`` only
    where a package index has it.
    """
    try:
        listed = requires(distribution) or []
    except PackageNotFoundError:
        return []
    found = []
    for line in listed:
        requirement, _, marker = line.partition(";")
        if marker.replace("'", '"').replace(" ", "") == f'extra=="{extra}"':
            found.append(requirement.strip())
    return found


def pip_install(packages: list[str]) -> str:
    """The command that installs packages for the Python that runs this."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def how_to_enable(registry: Registry, info: BackendInfo) -> str:
    """The command that makes an unavailable backend work, as far as one is known."""
    if missing_driver(info):
        listed = packages_of(registry.distribution(info.name), info.extra) if info.extra else []
        # A driver's import name is its package's name for want of anything better.
        return pip_install(listed or list(info.requires))
    return info.system_hint or f"install a driver for {info.name}"


def what_is_missing(registry: Registry) -> Iterator[str]:
    """Two lines for each backend that is not available: why, and what makes it work. No table has
    them, since a command that a cell folds cannot be pasted."""
    for name, info in registry.backends.items():
        probe = registry.probe(name)
        if not probe.available:
            # A missing driver's reason ends with a command of its own, for another situation.
            why = probe.reason.partition("; run: ")[0] if missing_driver(info) else probe.reason
            yield f"{name} is not available: {why}"
            yield f"  what enables it: {how_to_enable(registry, info)}"
