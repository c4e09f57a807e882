"""Which dispatches must wait for earlier ones, for APIs without automatic barriers."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.plan import ConstRef, PlannedDispatch
from tflgpu.values import frozen

#: Some bytes: of which memory, first, and one past the last.
Range = tuple[int, int, int]


@frozen
class Access:
    """What a dispatch reads and writes."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


def access_of(dispatch: PlannedDispatch, parts: Sequence[Range]) -> Access:
    """What a dispatch reads and writes, whose buffers are these parts of memory; constants are left
    out, since they never change."""
    buffers = dispatch.kernel.buffers
    bound = [
        (buffer.access, part)
        for buffer, ref, part in zip(buffers, dispatch.refs, parts, strict=True)
        if not isinstance(ref, ConstRef)
    ]
    return Access(
        tuple(part for access, part in bound if access != "write"),
        tuple(part for access, part in bound if access != "read"),
    )


def barriers(accesses: Sequence[Access]) -> list[bool]:
    """For each dispatch whether a barrier must come before it.

    It must where the dispatch reads what one since the last barrier wrote, or writes what one
    since then read or wrote. A barrier orders everything before it, so what came before it
    needs no further look.
    """
    found: list[bool] = []
    reads: list[Range] = []
    writes: list[Range] = []
    for access in accesses:
        needed = (
            _overlap(access.reads, writes)
            or _overlap(access.writes, writes)
            or _overlap(access.writes, reads)
        )
        if needed:
            reads.clear()
            writes.clear()
        reads.extend(access.reads)
        writes.extend(access.writes)
        found.append(needed)
    return found


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)
