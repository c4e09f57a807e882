"""One thread at a time in an interpreter: others are refused, not made to wait."""

from __future__ import annotations

import threading
from functools import partial
from operator import attrgetter
from typing import Any

from tflgpu.contract.forks import Holder
from tflgpu.errors import StateError


class Busy(Holder):
    """Lets one thread at a time in and refuses the others; the same thread may nest.

    Used in a ``with`` statement, which raises `StateError` where another thread is inside or
    `close` was called.

    Python handles signals between two steps of Python code, and a handler may raise (Ctrl-C does).
    Were entering or leaving written in Python, one that came in the middle of it would leave this
    held, and every other thread refused for good. So both are a single call into C:

    * leaving is the lock's own method;
    * entering asks the lock, without waiting, and looks the answer up in `_Answers`, where
      ``True`` is found and anything else raises.

    What is left is Python 3.10's own: where an exception leaves a ``with`` statement, it may handle
    a signal before it calls the method that leaves. Later versions do not.

    """

    def __init__(self) -> None:
        self._answers = _Answers({True: None})
        self._renew()
        self.belongs_to_process()

    # `with` looks both up in the class; what they give, for each object, are functions in C.
    __enter__: Any = property(attrgetter("_enter"))
    __exit__: Any = property(attrgetter("_leave"))

    def _renew(self) -> None:
        lock = threading.RLock()
        # An iterator that calls `acquire(False)` at each step. It ends where that gives None: never.
        asked = iter(partial(lock.acquire, False), None)
        self._enter = map(self._answers.__getitem__, asked).__next__
        self._leave = lock.__exit__
        self._answers.give_up = lock.release

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return not self._answers

    def close(self) -> None:
        """Let nobody in from now on; called by who is inside."""
        self._answers.clear()

    def after_fork(self) -> None:
        """In a child no other thread is using the interpreter, even if one was when it forked."""
        self._renew()


class _Answers(dict[bool, None]):
    """What follows from whether the lock was free: ``True`` is a key as long as it is not closed."""

    give_up: Any = None

    def __missing__(self, was_free: bool) -> None:
        if was_free:
            self.give_up()
        # A signal that came just before leaves the lock held, but for nobody: it is closed.
        if not self:
            raise StateError("this interpreter is closed; make a new one")
        raise StateError(
            "another thread is using this interpreter; make one interpreter for each thread"
        )
