"""Signals at a given step of some Python code, so that no test has to hit it by chance.

A signal is *planted* at a step: it comes there, and Python handles it at the next of the places
where it does (after calls, when loops turn), also in a driver's code. So nothing is raised where
a signal could not raise.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs


class Interruption(KeyboardInterrupt):
    """What the handler of a planted signal raises."""


class _Signal:
    """``_planted[SIGINT]`` lets a signal come without handling it: a subscript, unlike a call, is
    no place at which Python does."""

    __getitem__ = staticmethod(_thread.interrupt_main)


_planted = _Signal()


@attrs.frozen
class SignalResult:
    """What came of it.

    Attributes:
        reached: Whether there was such a step.
        error: What came out of the action, None where it ended as always.
    """

    reached: bool
    error: BaseException | None = None


def can_plant() -> bool:
    """Whether signals can be planted here: by CPython, in the main thread, which handles them."""
    return (
        sys.implementation.name == "cpython"
        and threading.current_thread() is threading.main_thread()
    )


@contextmanager
def handled() -> Iterator[None]:
    """Inside, SIGINT raises `Interruption`."""

    def handle(number: int, frame: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def steps(action: Callable[[], object], *, within: str = "", event: str = "line") -> int:
    """How many steps an action takes; `interrupted` has the arguments."""
    tracer = _Tracer(-1, within, event)
    tracer.trace(action)
    return tracer.seen


def interrupted(
    action: Callable[[], object], at: int, *, within: str = "", event: str = "line"
) -> SignalResult:
    """Do something, with a signal planted at one of its steps; to be called where it is `handled`.

    Args:
        action: What to do.
        at: At which step. With -1 the signal is there before the action begins; where that is no
            Python code, it finds the signal pending.
        within: Only steps in files whose path begins so count.
        event: A step is a "line" or an "opcode".
    """
    tracer = _Tracer(at, within, event)
    error: BaseException | None = None
    try:
        if at < 0:
            _planted[signal.SIGINT]
            action()
        else:
            tracer.trace(action)
        for _ in range(3):  # one that came in the last steps is handled here
            pass
    except BaseException as raised:  # noqa: BLE001  (it is what was asked for)
        error = raised
    return SignalResult(at < 0 or tracer.seen > at, error)


class _Tracer:
    """Counts steps, and plants a signal at one of them."""

    def __init__(self, at: int, within: str, event: str) -> None:
        self.seen = 0
        self._at, self._within, self._event = at, within, event
        # One object, which lives as long as this: CPython 3.11 may call a handler without other
        # references after it is gone.
        self._function = self._step

    def trace(self, action: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._function)
        try:
            action()
        finally:
            sys.settrace(before)

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._within):
            return None
        if event == "call":
            frame.f_trace_opcodes = self._event == "opcode"
        if event != self._event:
            return self._function
        self.seen += 1
        if self.seen != self._at + 1:
            return self._function
        sys.settrace(None)
        _planted[signal.SIGINT]  # and no call after it, which would handle it here
        return None
