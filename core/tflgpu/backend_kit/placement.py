"""Chooses the buffer of each region of the arena, where one buffer is too small for all.

WebGPU does not let one dispatch read a part of a buffer that is bound read-only while it writes
another part of the same buffer. So the arena is no single buffer there: regions become buffers of
their own, and those that are in use at different times share one ("shared objects" in the
literature on memory planning for inference; the greedy order is by size).
"""

from __future__ import annotations

from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.values import frozen


@frozen
class Placement:
    """Buffers' sizes, and for every region the index of its buffer and the offset in it."""

    sizes: tuple[int, ...]
    of: dict[ArenaRef, tuple[int, int]]


def regions_of(plan: Plan) -> set[ArenaRef]:
    """The regions of the arena that dispatches are bound to."""
    return {r for d in plan.dispatches for r in d.refs if isinstance(r, ArenaRef)}


def as_planned(plan: Plan) -> Placement:
    """Every region where the plan has it, in one buffer for each arena; empty ones nowhere."""
    parts = (ref for ref in regions_of(plan) if ref.nbytes)
    return Placement(plan.arenas, {ref: (ref.arena, ref.offset) for ref in parts})


def place(plan: Plan) -> Placement:
    """Give every region a buffer.

    A plan whose regions overlap while both hold data gets one buffer for each whole arena.
    """
    if _overlays(plan):
        return as_planned(plan)
    spans: dict[ArenaRef, tuple[int, int]] = {}
    for step, dispatch in enumerate(plan.dispatches):
        for ref in dispatch.refs:
            if isinstance(ref, ArenaRef):
                spans[ref] = (spans.get(ref, (step, step))[0], step)
    sizes: list[int] = []
    users: list[list[tuple[int, int]]] = []
    of: dict[ArenaRef, tuple[int, int]] = {}
    for ref in sorted(spans, key=lambda r: (-r.nbytes, spans[r], r.offset)):
        first, last = spans[ref]
        free = (
            i
            for i, used in enumerate(users)
            if all(last < start or end < first for start, end in used)
        )
        index = next(free, len(sizes))
        if index == len(sizes):
            sizes.append(ref.nbytes)
            users.append([])
        users[index].append((first, last))
        of[ref] = (index, 0)
    return Placement(tuple(sizes), of)


def _overlays(plan: Plan) -> bool:
    """Whether a dispatch reads bytes that were last written by the name of another region."""
    written: dict[ArenaRef, int] = {}
    for step, dispatch in enumerate(plan.dispatches):
        pairs = list(zip(dispatch.kernel.buffers, dispatch.refs, strict=False))
        for buffer, ref in pairs:
            if isinstance(ref, ArenaRef) and buffer.access != "write":
                own = written.get(ref, -1)
                if any(at > own and _overlap(ref, other) for other, at in written.items()):
                    return True
        for buffer, ref in pairs:
            if isinstance(ref, ArenaRef) and buffer.access != "read":
                written[ref] = step
    return False


def _overlap(a: ArenaRef, b: ArenaRef) -> bool:
    return (
        a != b
        and a.arena == b.arena
        and a.offset < b.offset + b.nbytes
        and b.offset < a.offset + a.nbytes
    )
