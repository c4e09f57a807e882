"""Calls in progress on a model; a `close` inside of one is put off to its end.

A signal's handler, an input's ``__array__`` and a callback may close what the same thread is using
at that moment. Waiting for the call that is under way would wait for ever, and releasing memory
would take it from that call. So `Closable.close` returns at once there, and releases when the
thread leaves its outermost call.

    model(x) -> handler -> model.close(): put off
             -> the result, and the model is released
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tflgpu.backend_kit.forks import Holder
from tflgpu.errors import StateError

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

_CLOSED = "is closed; make a new one"


class _Here(threading.local):
    """The thread, or the one that it works for, and guards that it is in a `RunGuard.call` of."""

    def __init__(self) -> None:
        self.me = get_ident()
        self.guards: set[RunGuard] = set()


_here = _Here()
#: All there are. A call that is alone is noted nowhere else: to close something asks each of them.
_guards: weakref.WeakValueDictionary[int, RunGuard] = weakref.WeakValueDictionary()
#: What is to be done by whom, at the end of the outermost call.
_put_off: list[tuple[int, Callable[[], object]]] = []


def after_calls(action: Callable[[], object]) -> None:
    """Close something by ``action``: now, or where this thread is inside of calls, at the end of
    the outermost of them."""
    if _is_inside():
        _put_off.append((_here.me, action))
    else:
        action()


def for_this_thread(function: Callable[..., object]) -> Callable[..., object]:
    """A function, to be called by another thread while this one waits for that: inside of it the
    calls of this thread are under way."""
    its = _here.me, _here.guards

    def call(*args: object) -> object:
        own = _here.me, _here.guards
        _here.me, _here.guards = its
        try:
            return function(*args)
        finally:
            _here.me, _here.guards = own

    return call


def _is_inside() -> bool:
    every = [found() for found in _guards.valuerefs()]
    return any(guard is not None and guard.is_inside for guard in every)


def _catch_up() -> None:
    """Do what this thread has put off, all of it, once it has left its outermost call."""
    mine = [each for each in _put_off if each[0] == _here.me]
    if mine and not _is_inside():
        _put_off.remove(mine[0])
        try:
            mine[0][1]()
        finally:
            _catch_up()


class Closable(ABC):
    """What its user closes, by `close` or at the end of a ``with`` statement. A subclass has
    `_close`."""

    def close(self) -> None:
        """Release what it holds; twice is harmless. Calls of other threads that are under way are
        waited for, and later ones are refused. Inside of a call of the same thread (by a signal's
        handler, say) it returns at once, and takes effect at the end of that call."""
        after_calls(self._close)

    @abstractmethod
    def _close(self) -> None:
        """The same, now."""

    def __enter__(self) -> Self:
        """The same object."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


class RunGuard(Holder):
    """Lets one call at a time into what it guards.

        with guard:                  a call, alone
        with guard.call:             a call, beside those of other threads: where inputs are
            with guard:              converted, say, which may be code of others, before it is alone

    A call from inside a call of the same thread raises `StateError`, and so does one that comes
    after `close`, or while another thread closes it.

    Args:
        what: What it guards, as messages name it: "this model".
        waits: Whether a call waits for those of other threads; otherwise it raises `StateError`.
    """

    #: What its owner may use without coming in; each call that comes in takes it away.
    shortcut: Any = None

    def __init__(self, what: str, *, waits: bool = True) -> None:
        self._what, self._waits = what, waits
        self._shut = ""  # why no call comes in any more
        self._begin()
        _guards[id(self)] = self
        self.belongs_to_process()

    def _begin(self) -> None:
        self._owner = 0  # the thread that keeps others out
        self._free = [None]  # taken away by what comes in
        self._over = threading.Condition()
        self._waiting, self._told = 0, False  # how many wait, and whether one is to look again

    def enter(self) -> Any:
        """As ``with`` does, which takes longer than two plain calls; `leave` follows. Gives the
        `shortcut` that there was."""
        me = get_ident()
        try:
            del self._free[0]  # no call, after which a signal could end this one
        except IndexError:
            if not self._waits and not self.is_held:
                busy = f"another thread is using {self._what}; make one for each thread"
                raise StateError(f"{self._what} {self._shut}" if self._shut else busy) from None
            self.enter_within(None)
        self._owner = me
        if self._shut:
            self.leave()
            raise StateError(f"{self._what} {self._shut}")
        found, self.shortcut = self.shortcut, None
        return found

    def leave(self, kind: object = None, error: object = None, trace: object = None) -> None:
        """What `enter` began is over."""
        self._owner = 0
        self._free.append(None)
        if self._waiting and not self._told:
            with self._over:
                self._told = True
                self._over.notify()
        if _put_off:
            _catch_up()

    __enter__, __exit__ = enter, leave

    def enter_within(self, timeout: float | None) -> bool:
        """Come in where the call of another thread ends within ``timeout`` seconds: True, though it
        may be closed; otherwise False.

        Raises:
            StateError: from inside a call.
        """
        if self.is_held:
            self.check_outside()
        me, end = get_ident(), math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                del self._free[0]
            except IndexError:
                left = None if timeout is None else end - time.monotonic()
                if not self._wait(left):
                    return False
            else:
                self._owner = me
                return True

    def _wait(self, left: float | None) -> bool:
        """Whether a call may have ended within so many seconds."""
        with self._over:
            self._waiting += 1
            try:
                return bool(self._free) or (
                    (left is None or left > 0) and (self._over.wait(left) or bool(self._free))
                )
            except BaseException:  # another one is to look in its place
                self._over.notify()
                raise
            finally:
                self._waiting, self._told = self._waiting - 1, False

    @property
    def call(self) -> _Call:
        """A call that lets those of other threads in."""
        return _Call(self)

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in a call of it."""
        return self.is_held or self in _here.guards

    @property
    def is_held(self) -> bool:
        """Whether this thread is in a call of it that keeps others out."""
        return self._owner != 0 and self._owner in (get_ident(), _here.me)

    @property
    def closed(self) -> bool:
        """Whether what it guards was released."""
        return self._shut == _CLOSED

    def close(self, release: Callable[[], object]) -> None:
        """Wait for the call of another thread that is under way, release what is guarded, and let
        no call in from then on; nothing where that was done. What ``release`` raises leaves it
        open, to be closed again.

        Raises:
            StateError: from inside a call, which `after_calls` is for.
        """
        with self.call:
            if not self.closed:
                self._shut = "is being closed by another thread"
            try:
                self.enter_within(None)
                try:
                    self.shortcut = None
                    if not self.closed:
                        release()
                        self._shut = _CLOSED
                finally:
                    self.leave()
            finally:
                if not self.closed:
                    self._shut = ""

    def after_fork(self) -> None:
        """Calls of other threads, and the closing by one, are the parent's."""
        self._shut = _CLOSED if self.closed else ""
        self.shortcut = None
        if not self.is_held:
            self._begin()

    def check_outside(self) -> None:
        """Refuse a call from inside a call of the same thread.

        Raises:
            StateError: it is one.
        """
        if self.is_inside:
            raise StateError(f"{self._what} is used from inside its own call, by the same thread")


class _Call:
    def __init__(self, guard: RunGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.check_outside()
        _here.guards |= {self._guard}  # no call, after which a signal could end this

    def __exit__(self, *exception: object) -> None:
        _here.guards.discard(self._guard)
        if _put_off:
            _catch_up()
