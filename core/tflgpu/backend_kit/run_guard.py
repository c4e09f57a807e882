"""Calls in progress on a model; a `close` inside of one is put off to its end.

A signal's handler, an input's ``__array__`` and a callback may close what the same thread is using
at that moment. Waiting for the call that is under way would wait for ever, and releasing memory
would take it from that call. So `Closable.close` returns at once there, and releases when the
thread leaves its outermost call.

    model(x) -> handler -> model.close(): put off
             -> the result, and the model is released
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tflgpu.backend_kit.forks import Holder
from tflgpu.errors import StateError

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

_CLOSED = "is closed; make a new one"


class _Calls:
    """The calls that a thread is inside of, and what is to be done when it leaves the last."""

    __slots__ = ("guards", "put_off")

    def __init__(self) -> None:
        self.guards: set[RunGuard] = set()
        self.put_off: list[Callable[[], object]] = []


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls = _Calls()


_here = _Thread()


def after_calls(action: Callable[[], object]) -> None:
    """Close something by ``action``: now, or where this thread is inside of calls, at the end of
    the outermost of them."""
    if _here.calls.guards:
        _here.calls.put_off.append(action)
    else:
        action()


def for_this_thread(function: Callable[..., object]) -> Callable[..., object]:
    """A function, to be called by another thread while this one waits for that: inside of it the
    calls of this thread are under way."""
    calls = _here.calls

    def call(*args: object) -> object:
        own, _here.calls = _here.calls, calls
        try:
            return function(*args)
        finally:
            _here.calls = own

    return call


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
            with guard.alone:        converted, say, which may be code of others, before it is alone

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
        self._lock = threading.RLock()
        self.belongs_to_process()

    def __enter__(self) -> Any:
        """Gives the `shortcut` that there was."""
        found, self.shortcut = self.shortcut, None
        # As below, without calls of Python, where there is a shortcut and so no call: each run of a
        # model is in one.
        if found is None or not self._lock.acquire(self._waits):
            self.check_outside()
            self.take()
        _here.calls.guards.add(self)
        return found

    def enter(self, timeout: float | None) -> bool:
        """As ``with`` does, where a call of another thread ends within ``timeout`` seconds;
        otherwise False. `leave` follows.

        Raises:
            StateError: from inside a call.
        """
        self.check_outside()
        free = self._lock.acquire(timeout=-1 if timeout is None else timeout)
        if free:
            _here.calls.guards.add(self)
        return free

    def leave(self, kind: object = None, error: object = None, trace: object = None) -> None:
        """What `enter` began is over."""
        calls = _here.calls
        calls.guards.discard(self)
        self._lock.release()
        if calls.put_off:
            _catch_up()

    __exit__ = leave

    @property
    def call(self) -> _Call:
        """A call that lets those of other threads in."""
        return _Call(self)

    @property
    def alone(self) -> _Alone:
        """The part of a `call` that lets no other thread in."""
        return _Alone(self)

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in a call of it."""
        return self in _here.calls.guards

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
                with self._lock:
                    self.shortcut = None
                    if not self.closed:
                        release()
                        self._shut = _CLOSED
            finally:
                if not self.closed:
                    self._shut = ""

    def after_fork(self) -> None:
        """The closing by another thread is the parent's."""
        self._shut = _CLOSED if self.closed else ""
        self.shortcut = None

    def take(self) -> None:
        """Keep other threads out from here on.

        Raises:
            StateError: another thread is in, or it is closed.
        """
        free = self._lock.acquire(self._waits)
        if self._shut or not free:
            if free:
                self._lock.release()
            busy = f"another thread is using {self._what}; make one for each thread"
            raise StateError(f"{self._what} {self._shut}" if self._shut else busy)
        self.shortcut = None

    def check_outside(self) -> None:
        """Refuse a call from inside a call of the same thread.

        Raises:
            StateError: it is one.
        """
        if self in _here.calls.guards:
            raise StateError(f"{self._what} is used from inside its own call, by the same thread")


class _Call:
    def __init__(self, guard: RunGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.check_outside()
        _here.calls.guards.add(self._guard)

    def __exit__(self, *exception: object) -> None:
        _here.calls.guards.discard(self._guard)
        _catch_up()


class _Alone:
    def __init__(self, guard: RunGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.take()

    def __exit__(self, *exception: object) -> None:
        self._guard._lock.release()  # noqa: SLF001


def _catch_up() -> None:
    """Do what was put off, all of it, once this thread has left its outermost call."""
    calls = _here.calls
    if calls.put_off and not calls.guards:
        try:
            calls.put_off.pop(0)()
        finally:
            _catch_up()
