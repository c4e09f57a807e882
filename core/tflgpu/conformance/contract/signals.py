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

#: Before the first step.
BEFORE = 0


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
        steps: How many steps there were, up to the signal.
        error: What came out of the action, None where it ended as always.
    """

    steps: int
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


def interrupted(action: Callable[[], object], at: int | None = None) -> SignalResult:
    """Do something, with a signal at one of its lines; to be called where it is `handled`.

    Args:
        action: What to do.
        at: At which line, counted from 1; `BEFORE` it begins; None for no signal.
    """
    seen = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        seen += event == "line"
        if event == "line" and seen == at:
            sys.settrace(None)
            _planted[signal.SIGINT]
            return None
        return step

    error: BaseException | None = None
    traced = sys.gettrace()
    try:
        if at == BEFORE:
            _thread.interrupt_main()
        else:
            sys.settrace(step)
        action()
        for _ in range(3):  # one that came in the last steps is handled here
            pass
    except BaseException as raised:  # noqa: BLE001  (it is what was asked for)
        error = raised
    finally:
        sys.settrace(traced)
    return SignalResult(seen, error)
