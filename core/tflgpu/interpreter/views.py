"""Views of a session's arrays, handed to users, and when the session may end.

A view that a user holds points into memory that the session owns, some of it mapped from a
device. A `Lease` is the base object of every such view, so that it is known whether there are
any, and so that the session is closed only when the last one is gone.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.runtime.session import Session


class Lease:
    """What a view's ``base`` is; dies with the last view (or slice of one)."""

    __slots__ = ("__array_interface__", "__weakref__", "_array", "_memory")

    def __init__(self, array: Array, memory: SessionMemory) -> None:
        self.__array_interface__: dict[str, Any] = array.__array_interface__
        self._array = array
        self._memory = memory


class SessionMemory:
    """A session, closed when this object is neither referred to nor leased from."""

    __slots__ = ("__weakref__", "_close", "leases", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._close = weakref.finalize(self, session.close)

    def view(self, array: Array) -> Array:
        """A view of one of the session's arrays that counts as a lease while it is held."""
        lease = Lease(array, self)
        self.leases.add(lease)
        return np.asarray(lease)

    def release(self) -> None:
        """Close the session now, or as soon as the last view is gone."""
        if not self.leases:
            self.session.close()
            self._close.detach()
