"""Checks that a process may still allocate what a driver needs, since several drivers (PoCL, Mesa's
CPU drivers) end the process when they cannot."""

from __future__ import annotations

import math
from pathlib import Path

from tflgpu.errors import DeviceError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

_MIB = 1 << 20


def room() -> float:
    """Bytes of address space that the process may still take, by its limit (``ulimit -v``);
    infinity where there is none."""
    if resource is None:
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf  # it cannot be told here
    return max(0.0, limit - pages * resource.getpagesize())


def check_room(what: str, needed: int) -> None:
    """Refuse what would take more memory than is left.

    Raises:
        DeviceError: it would; says how much, and what would help.
    """
    left = room()
    if needed > left:
        raise DeviceError(
            f"{what}: not enough memory: a driver may need {needed // _MIB} MiB of address space "
            f"for it, and this process may take {int(left) // _MIB} MiB more (ulimit -v, "
            "RLIMIT_AS), without which some drivers end the process; raise the limit, free some, "
            "or run on the CPU"
        )
