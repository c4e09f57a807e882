"""Devices as a backend lists them: what a probe answers, and one by its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tflgpu.contract.device import DeviceInfo, Probe
from tflgpu.errors import DeviceError

#: `tflgpu.lowering.caps.DeviceCaps.vendor` by the number that PCI (Khronos, where a vendor has none)
#: gave a vendor.
VENDORS = {
    0x10DE: "nvidia", 0x1002: "amd", 0x1022: "amd", 0x8086: "intel", 0x106B: "apple",
    0x13B5: "arm", 0x5143: "qualcomm", 0x10005: "mesa",
}  # fmt: skip


class Listed(Protocol):
    """A device, with whatever its API knows it by."""

    @property
    def info(self) -> DeviceInfo:
        """Which one it is."""
        ...


L = TypeVar("L", bound=Listed)


def probe_of(found: Sequence[Listed], reason: str) -> Probe:
    """What `tflgpu_probe` answers; ``reason`` is why there are none, where there are none."""
    return Probe(bool(found), "" if found else reason, tuple(each.info for each in found))


def device_of(found: Sequence[L], index: int, kind: str, reason: str) -> L:
    """A device by its index.

    Raises:
        DeviceError: there is none of that index; lists those there are, or says the ``reason`` why
            there are none. ``kind`` is the API's name.
    """
    if 0 <= index < len(found):
        return found[index]
    listed = ", ".join(f"{each.info.index} = {each.info.name}" for each in found)
    raise DeviceError(f"there is no {kind} device {index}; there are: {listed or reason or 'none'}")
