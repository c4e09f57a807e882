"""Optional for a recording: outputs that are handed to the caller instead of being copied.

A copy of a large output takes longer than computing it: DeepLab's 5.5 MB take 0.4 ms on the host
of an H200 and the network 0.4 ms on the GPU. A recording that can write its outputs to one of
several places gives the caller the memory that the last run wrote, and writes elsewhere for as
long as the caller holds it.
"""

from __future__ import annotations

from typing import Protocol

from tflgpu.ir.dtypes import Array


class Lender(Protocol):
    """Optional for a `tflgpu.contract.device.Recording`: outputs without a copy.

    `Recording.outputs` stay at one address until something was lent. After that they are to be
    asked for anew, after every run and every call here.
    """

    def lend(self, index: int) -> Array | None:
        """Output ``index`` of the last run, for the caller to keep, change and drop. None where
        that cannot be had, so that the caller copies `outputs`, which have the results then.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed.
        """

    def settle(self) -> None:
        """Give `outputs` memory that is not lent, with the results of the last run.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, or memory ran out.
        """
