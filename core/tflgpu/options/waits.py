"""Ways to wait that no device here has, and why."""

from __future__ import annotations

from tflgpu.errors import OptionError
from tflgpu.options.enums import WaitType

_REASONS = {
    WaitType.DO_NOT_WAIT: "an interpreter's results are read from host arrays, which hold them only "
    "once the run is over; use PASSIVE, or submit recordings and wait for them yourself "
    "(tflgpu.contract.pending)",
    WaitType.AGGRESSIVE: "it would keep the GPU from saving power between two runs, which no API "
    "that is used here can; ACTIVE is the nearest",
}


def refuse_wait(wait: WaitType) -> None:
    """Accept what can be had.

    Raises:
        OptionError: anything else; says why, and what to use.
    """
    if wait in _REASONS:
        raise OptionError(f"wait_type={wait.name} cannot be had: {_REASONS[wait]}")
