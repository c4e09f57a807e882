"""The base of buffers for every API, and helpers for bytes of host memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.forks import Holder
from tflgpu.contract.buffers import Buffer, Bytes, Span
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported


class BaseBuffer(Holder, ABC):
    """A `Buffer` of a `tflgpu.backend_kit.base_device.BaseDevice`.

    A subclass has `_write`, `_read`, `_export` and `_release`.

    Attributes:
        nbytes: Its size in bytes.
        region: What recordings bind, of the kind that their memory consists of.
        ledger: Where it is counted; None for what was imported.
        host: The host's memory that it is over, which is written and read as it is; None for all
            others.
        wait: Called before each use: returns when other APIs that use the memory are done; None
        where none does.
        readable, writable: Whether kernels may read it and write it. What was imported may have
            been made for one of the two only.
    """

    readable = writable = True
    ledger: Ledger | None = None
    host: Bytes | None = None
    wait: Callable[[], None] | None = None

    def __init__(self, lock: Any, token: object, nbytes: int, region: Any) -> None:
        """``lock`` and ``token`` are the device's; two buffers of one device have one token."""
        self._lock = lock
        self.token = token
        self.nbytes = nbytes
        self.region = region
        self._closed = self._released = False
        # For these alone. Recordings count under locks of their own, which a device that closes
        # takes after its own: a count under the device's lock could wait for ever.
        self._counting = threading.Lock()
        self._users = 0
        self.belongs_to_process()

    # For subclasses to write

    @abstractmethod
    def _write(self, data: Bytes) -> None:
        """Copy bytes to its start; there are some. Not asked of one over host memory."""

    @abstractmethod
    def _read(self, nbytes: int) -> Bytes:
        """Its first bytes; there are some. Likewise."""

    @abstractmethod
    def _export(self) -> object:
        """The API's own object for this memory."""

    def _release(self) -> None:
        """Free it."""

    @property
    def span(self) -> Span:
        """Which memory it is, so that two buffers over the same bytes are known as such."""
        return (id(self), 0, self.nbytes) if self.host is None else host_span(self.host)

    # What users of a buffer have

    def write(self, data: Array) -> None:
        """As `Buffer.write`.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the array is larger than the buffer, or the device failed.
        """
        flat: Bytes = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        with self._lock:
            self._check(flat.nbytes)
            if self.wait is not None:
                self.wait()
            if self.host is not None:
                self.host[: flat.nbytes] = flat
            elif flat.nbytes:
                self._write(flat)

    def read(self, into: Array) -> None:
        """As `Buffer.read`.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the array is larger than the buffer, or the device failed.
        """
        with self._lock:
            self._check(into.nbytes)
            if self.wait is not None:
                self.wait()
            if into.nbytes:
                found = self._read(into.nbytes) if self.host is None else self.host[: into.nbytes]
                into[...] = found.view(into.dtype).reshape(into.shape)

    def export(self) -> object:
        """The API's own object for this memory.

        Raises:
            StateError: the buffer or its device is closed.
        """
        with self._lock:
            self._check(0)
            return self._export()

    def close(self) -> None:
        """Free the memory; twice is harmless."""
        if self.inherited:
            return
        self._count(0, closed=True)

    # What recordings use

    def check_open(self) -> None:
        """See that it is not closed.

        Raises:
            StateError: it is.
        """
        self._check(0)

    def hold(self, *, again: bool = False) -> None:
        """One more recording is bound to it; or the same one ``again``, before it lets go once.

        Raises:
            StateError: it is closed, and was not bound before that.
        """
        if not again:
            self._check(0)
        self._count(1)

    def let_go(self) -> None:
        """One less."""
        self._count(-1)

    def after_fork(self) -> None:
        """A child may not touch it."""
        super().after_fork()
        self._closed = True

    # Inside

    def _count(self, more: int, *, closed: bool = False) -> None:
        with self._counting:
            self._users += more
            self._closed = self._closed or closed
            last = self._closed and not self._users and not self._released
            self._released = self._released or last
        if last:
            self._release()
            self.host = None
            if self.ledger is not None:
                self.ledger.close()

    def _check(self, nbytes: int) -> None:
        self.check_inherited("this buffer")
        if self._closed:
            raise StateError("this buffer is closed")
        if nbytes > self.nbytes:
            raise DeviceError(f"an array of {nbytes} bytes for a buffer of {self.nbytes}")


def flat_bytes(array: Array) -> Bytes:
    """An array's elements in row-major order, as bytes; a view where they lie so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def host_bytes(source: object) -> Bytes | Unsupported:
    """Host memory that has Python's buffer protocol, as bytes in place."""
    try:
        view = memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return Unsupported(f"a {type(source).__name__} has no buffer protocol")
    if view.readonly:
        return Unsupported(f"the memory of the {type(source).__name__} is read-only")
    if not view.c_contiguous:
        return Unsupported(f"the memory of the {type(source).__name__} is not packed row-major")
    return np.frombuffer(view, np.uint8)


def overlap(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers have bytes in common, as far as that can be told: not where one is
    neither of `BaseBuffer`'s kind nor the other itself."""
    if one is other:
        return True
    spans = [getattr(each, "span", None) for each in (one, other)]
    if None in spans:
        return False
    (memory, start, end), (its, begin, stop) = spans  # type: ignore[misc]
    return bool(memory == its and start < stop and begin < end)


def host_span(memory: Bytes) -> Span:
    """The span of a buffer over host memory, equal for all devices that import it."""
    start = int(memory.__array_interface__["data"][0])
    return "host", start, start + memory.nbytes
