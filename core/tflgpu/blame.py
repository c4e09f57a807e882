"""Code of others: called so that whatever it throws comes back as a value, with its name on it.

Only what a plugin brought is called this way. Ctrl-C is nobody's fault and always goes through.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import attrs


class Refused(Exception):
    """A plugin broke the contract; the text says how."""


@attrs.frozen
class Failed:
    """What was thrown, as a value."""

    error: BaseException

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


def shown(value: object) -> str:
    """A value in a message, however large it is and whatever its ``repr`` does."""
    text = attempt(repr, value)
    if isinstance(text, Failed):
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def attempt(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``action`` gives, or `Failed`.

    ``sys.exit`` must not end the host, and the panics of some native extensions derive from
    nothing but BaseException, so that everything is caught but Ctrl-C.
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
    """Whether a signal's handler raised this: it came while somebody's code ran, who has nothing
    to do with it."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {id(getattr(handler, "__code__", None)) for handler in handlers if callable(handler)}
    frame = error.__traceback__
    while frame is not None:
        if id(frame.tb_frame.f_code) in codes:
            return True
        frame = frame.tb_next
    return False
