"""The devices of a backend: their order, the answer to a probe, and one of them by its index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import attrs

from tflgpu.contract.device import DeviceInfo, Probe
from tflgpu.errors import DeviceError
from tflgpu.values import frozen

#: `tflgpu.language.caps.DeviceCaps.vendor` by the number that PCI (Khronos, where a vendor has
#: none) gave a vendor.
VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x1022: "amd",
    0x8086: "intel",
    0x106B: "apple",
    0x13B5: "arm",
    0x5143: "qualcomm",
    0x10005: "mesa",
}
#: The same by what drivers write for people.
_NAMES = {
    "nvidia": "nvidia",
    "advanced micro devices": "amd",
    "amd": "amd",
    "intel": "intel",
    "arm": "arm",
    "qualcomm": "qualcomm",
    "apple": "apple",
    "mesa": "mesa",
}

H = TypeVar("H")


@frozen
class Found(Generic[H]):
    """A device, and what its API knows it by."""

    info: DeviceInfo
    handle: H = attrs.field(eq=False, repr=False)


@frozen
class Listing(Generic[H]):
    """The devices of a backend.

    Attributes:
        kind: The API, as messages call it ("OpenCL").
        found: Devices; the index of one is its place here.
        reason: Why there are none, or no others.
    """

    kind: str
    found: tuple[Found[H], ...]
    reason: str

    @classmethod
    def of(cls, kind: str, ranked: Iterable[tuple[Any, DeviceInfo, H]], reason: str) -> Listing[H]:
        """Devices in the order of their ranks (the first of each): those of equal ranks as they
        came. Their infos get their indices."""
        ordered = sorted(ranked, key=lambda each: each[0])
        found = (Found(attrs.evolve(f, index=i), h) for i, (_, f, h) in enumerate(ordered))
        return cls(kind, tuple(found), reason)

    def probe(self) -> Probe:
        """What `tflgpu_probe` answers."""
        is_any = bool(self.found)
        return Probe(is_any, "" if is_any else self.reason, tuple(f.info for f in self.found))

    def at(self, index: int) -> Found[H]:
        """A device by its index.

        Raises:
            DeviceError: there is none of that index; lists those there are, or says why there are
                none.
        """
        if 0 <= index < len(self.found):
            return self.found[index]
        listed = ", ".join(f"{each.info.index} = {each.info.name}" for each in self.found)
        there = listed or self.reason or "none"
        raise DeviceError(f"there is no {self.kind} device {index}; there are: {there}")


def vendor_named(*texts: str) -> str:
    """`DeviceCaps.vendor` by names of a vendor, a device or a driver; the first that tells is
    believed. "" where none does."""
    for text in texts:
        low = text.lower()
        words = set(low.replace("(r)", " ").replace(",", " ").split())
        for part, vendor in _NAMES.items():
            if part in words or (" " in part and part in low):
                return vendor
    return ""
