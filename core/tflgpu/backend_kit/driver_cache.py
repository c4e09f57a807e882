"""A driver's own cache of compiled code, kept on disk: Vulkan's pipeline cache, Direct3D 12's
pipeline library, Metal's binary archive."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tflgpu.cache.disk_cache import DiskCache
from tflgpu.errors import DeviceError

H = TypeVar("H")


class DriverCache(ABC, Generic[H]):
    """The object of one device, with what this process and others compiled.

    A driver may refuse bytes, or end the process over them: both are tried before they are kept,
    and each time they are handed back. A subclass has `_new`, `_free`, `_size`, `_content`, `_add`
    and `_objection`, which stand for the API. One thread at a time.

    Attributes:
        handle: The driver's object.
    """

    handle: H

    def __init__(self, disk: DiskCache, key: str) -> None:
        """With what is on disk under ``key``, or with nothing.

        Raises:
            DeviceError: the driver makes none, not even an empty one.
        """
        self._disk, self._key = disk, key
        self._stored = b""
        #: Bytes of the driver's object when it last held what is on disk, and no more.
        self._known_size = -1
        #: Whether the driver was given what another process made; it may read that only when
        #: something is asked for.
        self._is_warm = False
        found = self._load()
        if found:
            with disk.reading([key]) as is_safe, contextlib.suppress(DeviceError):
                if is_safe:
                    self.handle = self._new(found)
                    self._is_warm = True
                    self._known_size = self._size()
                    return
        self.handle = self._new(b"")

    # For subclasses to write

    @abstractmethod
    def _new(self, content: bytes) -> H:
        """An object that has what is in ``content``.

        Raises:
            DeviceError: the driver does not take it.
        """

    @abstractmethod
    def _free(self, handle: H) -> None:
        """Release an object."""

    @abstractmethod
    def _size(self) -> int:
        """Bytes that the device's object would give; 0 where that cannot be told."""

    @abstractmethod
    def _content(self) -> bytes | None:
        """What it has, None where it cannot be had."""

    @abstractmethod
    def _add(self, other: H) -> None:
        """Let it have what another object has."""

    def _objection(self, content: bytes) -> str:
        """Why this driver cannot have made these bytes; "" where it may have."""
        return ""

    # What devices use

    def using(self) -> contextlib.AbstractContextManager[bool]:
        """While inside, the driver may read what it was given."""
        return self._disk.reading([self._key] if self._is_warm else [])

    def save(self) -> None:
        """Keep what the driver compiled, together with what other processes have kept since."""
        # One that did not grow has nothing new. It is that of all models, so that reading the file
        # and the driver's copy would take longer than compiling for one of them.
        size = self._size()
        if size in (self._known_size, 0) or self._disk.is_unsafe(self._key):
            return
        other = self._load()
        if other and other != self._stored:
            with self._disk.reading([self._key]) as is_safe, contextlib.suppress(DeviceError):
                if is_safe:
                    made = self._new(other)
                    self._add(made)
                    self._free(made)
                    self._is_warm = True
        with self._disk.reading([self._key], "proof") as is_safe:
            if not is_safe:
                return
            content = self._content()
            if content is None or content == other or self._objection(content):
                self._known_size = size
                return
            try:  # what it cannot read itself is of no use to the next process
                self._free(self._new(content))
            except DeviceError:
                return
        self._disk.store(self._key, content)
        self._stored, self._known_size = content, len(content)

    # Inside

    def _load(self) -> bytes | None:
        self._disk.sweep()
        content = self._disk.load(self._key)
        if content is not None and (why := self._objection(content)):
            self._disk.drop(self._key, why)
            return None
        return content
