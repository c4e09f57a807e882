"""Checks what a backend's buffers return (see `tflgpu.checks.device`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tflgpu.checks.plugin_caller import PluginCaller, PluginProxy
from tflgpu.contract.buffers import Buffer
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

_NEEDED = ("nbytes", "write", "read", "export", "close")


class CheckedBuffer(PluginProxy):
    """A `Buffer` around a plugin's buffer."""

    def __init__(self, inner: Any, party: PluginCaller, nbytes: int) -> None:
        super().__init__(inner, party)
        #: Its size in bytes.
        self.nbytes = nbytes

    def write(self, data: Array) -> None:
        """As `Buffer.write`.

        Raises:
            StateError, DeviceError: as there; names the plugin.
        """
        self._party.call("write", self.inner.write, data)

    def read(self, into: Array) -> None:
        """As `Buffer.read`.

        Raises:
            StateError, DeviceError: as there; names the plugin.
        """
        self._party.call("read", self.inner.read, into)

    def export(self) -> object:
        """As `Buffer.export`.

        Raises:
            StateError, DeviceError: as there; names the plugin.
        """
        return self._party.call("export", self.inner.export)


def checked_buffer(
    found: object, party: PluginCaller, what: str, least: int
) -> CheckedBuffer | Unsupported:
    """What ``allocate`` or ``import_buffer`` gave, checked; a buffer has ``least`` bytes or more.

    Raises:
        DeviceError: it is neither a buffer nor a reason; names the plugin.
    """
    if isinstance(found, Unsupported):
        return checked_reason(found, party, what)
    lacking = party.lacking(found, _NEEDED, ("nbytes",))
    if lacking:
        raise party.broke(
            f"{what} gave {shown(found)}, neither a Buffer (it has no {lacking}) nor an "
            "Unsupported with a reason"
        )
    nbytes = party.call("nbytes", getattr, found, "nbytes")
    if isinstance(nbytes, bool) or not isinstance(nbytes, (int, np.integer)) or nbytes < least:
        raise party.broke(f"{what} gave a buffer of {shown(nbytes)} bytes; {least} were due")
    return CheckedBuffer(found, party, int(nbytes))


def checked_reason(answer: object, party: PluginCaller, what: str) -> Unsupported:
    """A "no".

    Raises:
        DeviceError: it is none, or has no reason; names the plugin.
    """
    if isinstance(answer, Unsupported) and isinstance(answer.reason, str) and answer.reason:
        return answer
    raise party.broke(f"{what} gave {shown(answer)}, which is no Unsupported with a reason")


def inner_buffers(buffers: Mapping[int, Buffer | None] | None) -> dict[int, Any]:
    """The buffers as their backend made them."""
    return {
        index: buffer.inner if isinstance(buffer, CheckedBuffer) else buffer
        for index, buffer in (buffers or {}).items()
    }
