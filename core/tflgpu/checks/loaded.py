"""Checks what a device's `load` returned: a recording, or one that lends its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.checks.plugin_caller import PluginCaller, close_quietly
from tflgpu.checks.recording import CheckedRecording, Edge, misfit
from tflgpu.contract.device import Recording
from tflgpu.contract.offers import Lender, offers
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

_NEEDED = ("inputs", "outputs", "run", "submit", "bind", "profile", "close")


class CheckedLender(CheckedRecording):
    """The same around a recording that lends its outputs, which move then."""

    _lends = True

    def lend(self, index: int) -> Array | None:
        """As `Lender.lend`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed, or what it lent is not the output that was asked for.
        """
        array = self._party.call("lend", self.inner.lend, index)
        if array is None:
            return None
        problem = misfit(self._edges["outputs"][index], array, writable=True)
        if problem is not None:
            raise self._party.broke(f"lend({index}) gave what {problem}")
        lent: Array = array
        return lent

    def settle(self) -> None:
        """As `Lender.settle`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed.
        """
        self._party.call("settle", self.inner.settle)


def checked_recording(
    inner: object,
    party: PluginCaller,
    inputs: Sequence[Edge],
    outputs: Sequence[Edge],
    dispatches: int | None = None,
) -> Recording:
    """A recording that was just loaded, checked; it is closed where it is not what it must be.

    Raises:
        DeviceError: names the plugin and what it broke.
    """
    lacking = party.lacking(inner, _NEEDED, ("inputs", "outputs"))
    if lacking:
        raise party.broke(
            f"it loaded a {type(inner).__name__}, which is no recording: it has no {lacking}"
        )
    try:
        lends = party.call("lend", offers, inner, Lender)
        kind = CheckedLender if lends else CheckedRecording
        return kind(inner, party, inputs, outputs, dispatches)  # type: ignore[arg-type]
    except DeviceError:
        close_quietly(inner)
        raise
