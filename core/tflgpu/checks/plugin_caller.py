"""Calls a backend's code so that its exceptions become errors that name the backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar

from tflgpu.errors import DeviceError, StateError, TflgpuError
from tflgpu.errors.blame import attempt, describe
from tflgpu.values import frozen

_T = TypeVar("_T")


@frozen
class PluginCaller:
    """A backend and the plugin that brought it.

    Attributes:
        label: As messages name it: "backend toy (plugin toy_plugin from toy-package)".
        shipped: Whether it came with tflgpu; its own errors say enough as they are.
    """

    label: str
    shipped: bool = False

    def call(self, what: str, action: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """What ``action`` gives.

        Raises:
            DeviceError: it raised; names the backend, its plugin and ``what``.
            StateError: the same of one that it raised.
        """
        try:
            return action(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self.blame(what, error)

    def blame(self, what: str, error: Exception) -> NoReturn:
        """Raise what is to be raised instead of ``error``, or ``error`` itself where it is one of
        ours and names the backend."""
        if isinstance(error, TflgpuError) and self.shipped:
            raise error
        if isinstance(error, MemoryError):
            raise DeviceError(f"{self.label}: {what}: not enough memory") from error
        if not isinstance(error, (DeviceError, StateError)):
            raise DeviceError(f"{self.label}: {what} raised {describe(error)}") from error
        if self.label not in str(error):
            # In place, so that its class and all else that it carries stay.
            error.args = (f"{self.label}: {error}", *error.args[1:])
        raise error

    def lacking(self, inner: object, names: Sequence[str], plain: Collection[str]) -> str:
        """Which of the names of a plugin's thing it has not, for messages; "" where it has all. All
        are methods but for those that are ``plain``."""

        def has(name: str) -> bool:
            value = getattr(inner, name, None)
            return value is not None and (name in plain or callable(value))

        return ", ".join(name for name in names if not self.call(name, has, name))

    def broke(self, text: str) -> DeviceError:
        """The error of a contract that was broken, to be raised."""
        return DeviceError(f"{self.label}: {text}")


class PluginProxy:
    """Stands in the place of what a plugin made; attributes that it lacks are the plugin's.

    Attributes:
        inner: The device, recording or buffer as its backend made it.
    """

    def __init__(self, inner: Any, party: PluginCaller) -> None:
        self.inner, self._party = inner, party

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not made yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def close(self) -> None:
        """Release it; twice is harmless.

        Raises:
            DeviceError: it failed at that.
        """
        self._party.call("close", self.inner.close)


def close_quietly(inner: object) -> None:
    """Close an object that failed a check, and drop what that raises: the failed check is the
    error that the caller gets."""
    close = attempt(getattr, inner, "close", None)
    if callable(close):
        attempt(close)
