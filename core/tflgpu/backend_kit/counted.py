"""Reference counts for objects that must outlive what was made on them, where an API keeps none."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from tflgpu.backend_kit.forks import Holder


class Counted(Holder, ABC):
    """A device, for example, whose memory arrays may lie in. It is destroyed when it is closed and
    the last user is released; never in a forked child."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._users = 1  # itself, until it is closed
        self._is_open = True

    @abstractmethod
    def _destroy(self) -> None:
        """Destroy it. For subclasses to write."""

    def retain(self) -> None:
        """Something on it now lives on its own."""
        with self._counting:
            self._users += 1

    def release(self) -> None:
        """It is gone."""
        with self._counting:
            self._users -= 1
            last = self._users == 0
        if last and not self.inherited:
            self._destroy()

    def close(self) -> None:
        """Let go of it; twice is harmless."""
        with self._counting:
            was_open, self._is_open = self._is_open, False
        if was_open:
            self.release()
