"""A device's account of the bytes that it has taken, and a ledger for what ends together."""

from __future__ import annotations

import threading
from collections import deque

from tflgpu.contract.memory_use import MemoryUse, Use
from tflgpu.errors import MemoryLimitError

#: What a user can do who is told that there is no room.
ADVICE = (
    "raise memory_limit, close interpreters or buffers of the same delegate, or let "
    "inference_priority1=MIN_MEMORY_USAGE take less"
)


class Account:
    """What one device has taken.

    Attributes:
        limit: Most bytes of all kinds together; None = any number.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._lock = threading.Lock()
        self._taken = dict.fromkeys(Use, 0)
        # Memory may end wherever objects are collected, under the lock too; so what is given back
        # is only noted there, which needs none.
        self._given: deque[tuple[Use, int]] = deque()

    @property
    def use(self) -> MemoryUse:
        """What is taken now."""
        with self._lock:
            return self._settled()

    def ledger(self) -> Ledger:
        """Counts what belongs together, to be given back together."""
        return Ledger(self)

    def check(self, needed: MemoryUse, what: str) -> None:
        """See that there is room for so much more.

        Raises:
            MemoryLimitError: there is not; says how much ``what`` takes, of what, and what is left.
        """
        if self.limit is None:
            return
        now = self.use
        if now.total + needed.total > self.limit:
            beside = f", of which {now.told()} are taken already" if now.total else ""
            raise MemoryLimitError(
                f"{what} takes {needed.total} bytes on the device ({needed.told()}), and "
                f"memory_limit is {self.limit}{beside}; {ADVICE}"
            )

    def take(self, kind: Use, nbytes: int, what: str) -> None:
        """Count an allocation, before it is made.

        Raises:
            MemoryLimitError: it would go over the limit.
        """
        with self._lock:
            self._settle()
            if self.limit is not None and sum(self._taken.values()) + nbytes > self.limit:
                now = self._settled()
                raise MemoryLimitError(
                    f"{what} takes {nbytes} bytes on the device, and memory_limit is "
                    f"{self.limit}, of which {now.told()} are taken already; {ADVICE}"
                )
            self._taken[kind] += nbytes

    def give(self, kind: Use, nbytes: int) -> None:
        """Count the end of one. Takes no lock."""
        self._given.append((kind, nbytes))

    def _settle(self) -> None:
        while self._given:
            kind, nbytes = self._given.popleft()
            self._taken[kind] -= nbytes

    def _settled(self) -> MemoryUse:
        self._settle()
        return MemoryUse(**{kind.value: nbytes for kind, nbytes in self._taken.items()})


class Ledger:
    """Allocations that end together: with `close`, or with this object."""

    def __init__(self, account: Account | None = None) -> None:
        """A ledger of ``account``; without an account its counts are not used."""
        #: Where it counts.
        self.account = Account() if account is None else account
        self._entries: list[tuple[Use, int]] = []

    def take(self, kind: Use, nbytes: int, what: str) -> None:
        """As `Account.take`.

        Raises:
            MemoryLimitError: as there.
        """
        self.account.take(kind, nbytes, what)
        self._entries.append((kind, nbytes))

    def close(self) -> None:
        """All of it was freed; twice is harmless."""
        while self._entries:
            self.account.give(*self._entries.pop())

    def __del__(self) -> None:
        self.close()
