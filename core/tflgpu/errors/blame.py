"""Calls a plugin's code so that an exception comes back as a value that names the plugin.

Only a plugin's code is called this way. Ctrl-C, and other exceptions that a signal's handler
raises, always go through.
"""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

_LINE = 200


class Refused(Exception):
    """A plugin broke the contract; the text says how."""


class Failed:
    """An exception, as a value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        return describe(self.error)


def describe(error: BaseException) -> str:
    """An exception in a line of a message: its type says much where its text is a bare key."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (even that is somebody else's code)
        return kind
    if isinstance(error, Refused):
        return text
    return f"{kind}: {text}" if text else kind


def in_a_line(error: BaseException) -> str:
    """An error's message as one line, for reports."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE else f"{text[: _LINE - 3]}..."


def shown(value: object) -> str:
    """A value as messages show it: cut where it is long, and safe where its ``repr`` raises."""
    text = attempt(repr, value)
    if isinstance(text, Failed):
        return f"a {type(value).__name__}"
    if "\n" in text:  # an array's
        text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def attempt(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of ``action``, or `Failed`.

    ``sys.exit`` must not end the host, and the panics of some native extensions derive from
    nothing but BaseException, so that everything is caught but Ctrl-C and what handlers of other
    signals raise.
    """
    try:
        return action(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if of_signal(error):
            raise
        return Failed(error)


def of_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised this while a plugin's code ran, so that the plugin is not
    to blame.

    The traceback tells: Python calls a handler with the signal's number and the frame that it
    interrupted, which is the one before the handler's own. So a handler is known that has put
    another in its place before it raised, as those do that act once. One that has let go of its
    arguments is known by its code, as long as it is installed. What is raised in a thread from
    outside (by its debugger, say) leaves no such mark.
    """
    codes = None
    before, entry = None, error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        if before is not None and _was_given(frame, before):
            return True
        if codes is None:
            codes = _codes_of_handlers()
        if frame.f_code in codes:
            return True
        before, entry = frame, entry.tb_next
    return False


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether a call had a signal's number and then the frame ``interrupted`` as arguments."""
    code, held = frame.f_code, frame.f_locals
    rest = code.co_argcount + code.co_kwonlyargcount
    given = [held.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        more = held.get(code.co_varnames[rest], ())
        given += more if isinstance(more, tuple) else ()
    return any(b is interrupted and isinstance(a, int) for a, b in pairwise(given))


def _codes_of_handlers() -> set[Any]:
    """The code of every handler that is installed: functions, methods, partials, objects."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if not callable(handler):
            continue  # SIG_DFL and SIG_IGN, whose class is called whenever an enumeration is
        while isinstance(handler, functools.partial):
            handler = handler.func
        if not hasattr(handler, "__code__"):
            handler = getattr(type(handler), "__call__", None)  # noqa: B004 (it is not asked whether)
        codes.add(getattr(handler, "__code__", None))
    return codes
