"""Which dispatches must wait for earlier ones, for APIs that leave this to their users."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

#: Some bytes: of which memory, first, and one past the last.
Range = tuple[int, int, int]


@attrs.frozen
class Access:
    """What a dispatch reads and writes."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


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
