"""A measurement on all processors of the machine by turns.

How long a call takes depends on the processor that its thread is on: one that serves the device's
interrupts, or whose sibling is busy, takes longer to hear of a run's end. A thread mostly stays
where it is, so that a process would tell of one processor, and the next process of another.
"""

from __future__ import annotations

import os
from contextlib import suppress


class ProcessorTour:
    """Moves this thread from one processor to the next; `end` brings back what was.

    Where a system cannot move threads, or there is only one processor, nothing moves.
    """

    def __init__(self) -> None:
        allowed = getattr(os, "sched_getaffinity", None)
        self._home: set[int] = set() if allowed is None else allowed(0)
        self._order = sorted(self._home)
        self.moves = len(self._order) > 1

    def move(self, turn: int) -> None:
        """Move to the processor of a turn."""
        if self.moves:
            # One may have been taken from the process meanwhile.
            with suppress(OSError):
                os.sched_setaffinity(0, {self._order[turn % len(self._order)]})

    def end(self) -> None:
        """Let the thread be where it may."""
        if self.moves:
            with suppress(OSError):
                os.sched_setaffinity(0, self._home)
