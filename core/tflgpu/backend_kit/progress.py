"""Progress of compiling a plan's kernels, reported while the driver works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tflgpu.backend_kit.run_guard import for_this_thread
from tflgpu.errors.blame import LOG, Failed, attempt

#: Told how many kernels are ready, and of how many.
Progress = Callable[[int, int], object]
_asked: ContextVar[Progress | None] = ContextVar("tflgpu-progress", default=None)


@contextmanager
def telling(progress: Progress | None) -> Iterator[None]:
    """While inside, this thread's loading is told of."""
    before = _asked.set(progress)
    try:
        yield
    finally:
        _asked.reset(before)


class Count:
    """Kernels that are ready, of those of one plan. Safe to use from the threads that compile.

    What the callback raises is logged, and it is not called again: a display is no reason to stop.
    """

    def __init__(self, whole: int) -> None:
        asked = _asked.get()
        self._progress = None if asked is None else for_this_thread(asked)
        self._whole = whole
        self._ready = 0
        self._lock = threading.Lock()
        self._tell()

    def one_more(self) -> None:
        """A kernel is ready."""
        if self._progress is not None:
            with self._lock:
                self._ready = min(self._ready + 1, self._whole)
                self._tell()

    def end(self) -> None:
        """All are: some have the same code."""
        with self._lock:
            if self._ready < self._whole:
                self._ready = self._whole
                self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            said = attempt(self._progress, self._ready, self._whole)
            if isinstance(said, Failed):
                LOG.warning("tflgpu: progress is told no more, since telling it failed: %s", said)
                self._progress = None
