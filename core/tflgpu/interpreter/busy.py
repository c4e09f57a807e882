"""One thread at a time in an interpreter: others are refused, not made to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from operator import attrgetter, methodcaller
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

    `close` waits for who is inside, and refuses whoever comes meanwhile, so that a loop of calls in
    another thread cannot keep it waiting for ever. Entering is another function as long as that
    lasts; should a signal end a `close` before that function is taken back, it takes itself back.

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
        self._enter: Any = map(self._answers.__getitem__, asked).__next__
        self._ask = self._enter
        self._leave = lock.__exit__
        self._answers.give_up = lock.release
        self._lock, self._closer = lock, threading.RLock()
        # Whether another thread has `_closer`: asked in one call into C, as above. Giving it back
        # fails where it was not got.
        parts = (partial(self._closer.acquire, False), self._closer.release)
        self._ask_closer = partial(map, methodcaller("__call__"), parts)

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return not self._answers

    def close(self, action: Callable[[], None]) -> None:
        """Wait for who is inside, do something, and let nobody in from then on; nothing where it is
        closed. Where ``action`` raises, or a signal's handler does, it can be called again."""
        with self._closer:
            if self.closed:
                return
            try:
                self._enter = self._refuse
                with self._lock:
                    action()
                    self._answers.clear()
            finally:
                self._enter = self._ask

    def _refuse(self) -> None:
        """Entering while somebody closes it."""
        try:
            list(self._ask_closer())
        except RuntimeError:
            raise StateError("this interpreter is being closed by another thread") from None
        # Nobody does, or this thread itself.
        self._enter = self._ask
        self._enter()

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
