"""Moves parts to the CPU that do not fit in the memory that the user allows."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.parts import Part

_ADVICE = "; inference_priority1=MIN_MEMORY_USAGE takes less"


def over_limit(parts: Sequence[Part], limit: int) -> dict[int, str]:
    """Why parts stay on the CPU, by index: those of the largest gain are taken as long as they fit
    beside each other in ``limit`` bytes."""
    plans = {i: part.plan for i, part in enumerate(parts) if part.plan is not None}
    left, reasons = limit, dict[int, str]()
    for index in sorted(plans, key=lambda i: (-parts[i].gain, i)):
        nbytes = plans[index].device_bytes
        if nbytes <= left:
            left -= nbytes
        else:
            reasons[index] = too_much(nbytes, left, limit)
    return reasons


def too_much(nbytes: int, left: int, limit: int) -> str:
    """The reason for a part of so many bytes, where so many of the limit are left."""
    beside = "" if left == limit else f", of which other parts leave {left}"
    return (
        f"its part of the graph takes {nbytes} bytes on the device, and memory_limit is "
        f"{limit}{beside}{_ADVICE}"
    )
