"""Opens a lost device again for all of its sessions, and closes the old one after the last."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors.blame import attempt

_LOG = logging.getLogger("tflgpu")


class User(Protocol):
    """A provider with recordings on a device."""

    @property
    def is_closed(self) -> bool:
        """Whether it has none any more."""
        ...


class Renewal:
    """The users of the device in use, and the devices that it replaced. Those are closed when none
    of their users is left: each hears by itself, at its next run, that its device is lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: weakref.WeakSet[User] = weakref.WeakSet()
        self._replaced: list[tuple[Device | NodeDevice, weakref.WeakSet[User]]] = []

    def users(self) -> weakref.WeakSet[User]:
        """The users of the device in use, a set to add to; closes devices without users."""
        for entry in tuple(self._replaced):
            if all(user.is_closed for user in entry[1]):
                attempt(entry[0].close)  # nothing is expected of a lost one
                if entry in self._replaced:
                    self._replaced.remove(entry)
        return self._users

    def replace(
        self, device: Device | NodeDevice, user: User, reopen: Callable[[], object]
    ) -> None:
        """Call ``reopen`` in the place of a device; nothing where that was done since ``user`` came
        to it. What ``reopen`` raises leaves everything as it is."""
        with self._lock:
            if user in self._users:
                _LOG.warning("tflgpu: device %s is lost, and opened anew", device.info.name)
                reopen()
                self._replaced.append((device, self._users))
                self._users = weakref.WeakSet()

    def close(self) -> None:
        """Close what was replaced."""
        while self._replaced:
            attempt(self._replaced[-1][0].close)
            self._replaced.pop()

    def after_fork(self) -> None:
        """A child process touches none of the devices; another thread may have held the lock at the
        fork."""
        self._lock = threading.Lock()
