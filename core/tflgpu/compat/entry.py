"""One entry of the device database: the devices that it matches, and the facts that it states."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

import attrs

from tflgpu.compat.version import VersionRange, find_version
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import OptionError, PluginError
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.values import frozen


class Verdict(enum.Enum):
    """Whether a device may be chosen without being asked for."""

    ALLOW = "allow"
    DENY = "deny"


_SYSTEMS = ("linux", "windows", "darwin")
_CHOOSING = ("backend", "device")


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise PluginError(f"{text!r} is no regular expression: {error}") from error


def _range(value: str | VersionRange | None) -> VersionRange | None:
    return VersionRange.parse(value) if isinstance(value, str) else value


@frozen(kw_only=True)
class CompatEntry:
    """Facts about some devices. All the matchers that are given must hold.

    One without ``verdict``, ``caps`` and ``options`` is a note, which is shown with the device.

    Attributes:
        name: Unique; shown with the reason.
        reason: One sentence for the user: what is wrong or known, and what to do.
        source: Where that is documented, so that it can be checked and one day removed.
        backend: Name of a backend; "" for every one.
        vendor: As `DeviceInfo.vendor`; "" for every one.
        device: Regular expression searched in the device's name, upper or lower case.
        driver: The same for `DeviceInfo.driver`.
        driver_version: Bounds such as ``">=535, <550.54.14"``, compared number by number with
            the group ``version`` of ``driver``, or else with the first number after what
            ``driver`` found. A device that shows no version does not match.
        system: "linux", "windows" or "darwin"; "" for every one.
        verdict: Allow or deny, None to say nothing of it.
        caps: Fields of `DeviceCaps` that are not as the driver says. See `judge.effective_caps`.
        options: `DelegateOptions` that suit the device (not ``backend`` or ``device``). They are
            what `CompatibilityList.best_options_for_this_device` gives.
        rank: Where entries contradict each other, the higher rank holds. Shipped ones have 0.

    Raises:
        PluginError: a field has a value that means nothing; names the entry.
    """

    name: str
    reason: str
    source: str = ""
    backend: str = ""
    vendor: str = ""
    device: str = ""
    driver: str = ""
    driver_version: VersionRange | None = attrs.field(default=None, converter=_range)
    system: str = ""
    verdict: Verdict | None = None
    caps: Mapping[str, Any] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)
    rank: int = 0

    def __attrs_post_init__(self) -> None:
        """Check what a typing mistake would turn into an entry that never matches."""
        if not self.name or not self.reason:
            raise PluginError(f"database entry {self.name!r} needs a name and a reason")
        if self.system and self.system not in _SYSTEMS:
            raise self._wrong(f"system is one of {', '.join(_SYSTEMS)}, not {self.system!r}")
        for text in (self.device, self.driver):
            try:
                _regex(text)
            except PluginError as error:
                raise self._wrong(str(error)) from error
        known = attrs.fields_dict(DeviceCaps)
        for field, value in self.caps.items():
            if field not in known:
                raise self._wrong(f"DeviceCaps has no {field!r}")
            if type(value) is not type(known[field].default):
                raise self._wrong(f"caps {field} is {value!r}")
        for field in _CHOOSING:
            if field in self.options:
                raise self._wrong(f"{field!r} is what is being chosen, not an option of a device")
        try:
            DelegateOptions(**self.options)
        except (OptionError, TypeError) as error:
            raise self._wrong(str(error)) from error

    def matches(self, info: DeviceInfo, system: str) -> bool:
        """Whether this entry is about a device on an operating system ("" = not known)."""
        pairs = (
            (self.backend, info.backend),
            (self.vendor, info.vendor),
            (self.system, system),
        )
        found = _regex(self.driver).search(info.driver)
        if found is None or not _regex(self.device).search(info.name):
            return False
        if any(wanted not in ("", its) for wanted, its in pairs):
            return False
        if self.driver_version is None:
            return True
        named = found.groupdict().get("version")
        version = find_version(info.driver[found.end() :] if named is None else named)
        return version is not None and version in self.driver_version

    def _wrong(self, what: str) -> PluginError:
        return PluginError(f"database entry {self.name!r}: {what}")

    def __str__(self) -> str:
        return f"{self.reason} [{self.name}]"
