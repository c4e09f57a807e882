"""Moves parts to the CPU that do not fit in the memory that the user allows."""

from __future__ import annotations

from collections.abc import Mapping

_ADVICE = "; inference_priority1=MIN_MEMORY_USAGE takes less"


def over_limit(parts: Mapping[int, tuple[float, int]], limit: int) -> dict[int, str]:
    """Why parts stay on the CPU, by their numbers. ``parts`` has the gain of each and its bytes:
    those of the largest gain are taken as long as they fit beside each other in ``limit`` bytes."""
    left, reasons = limit, dict[int, str]()
    for number, (_, nbytes) in sorted(parts.items(), key=lambda part: (-part[1][0], part[0])):
        if nbytes <= left:
            left -= nbytes
        else:
            beside = "" if left == limit else f", of which other parts leave {left}"
            reasons[number] = (
                f"its part of the graph takes {nbytes} bytes on the device, and memory_limit is "
                f"{limit}{beside}{_ADVICE}"
            )
    return reasons
