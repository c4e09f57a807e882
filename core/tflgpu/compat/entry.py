"""One entry of the device database: the devices that it matches, and the facts that it states; and
all that entries state about one device."""

from __future__ import annotations

import enum
import platform
import re
from collections.abc import Iterable, Mapping
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


#: What a driver may not tell, so that an entry may say it. All else can only be taken away:
#: an entry cannot give a device a feature that it lacks.
_FACTS = ("cache_bytes", "compute_units", "vendor")


@frozen
class Judgement:
    """All facts that the database states about one device.

    Attributes:
        verdict: ALLOW where no entry says otherwise.
        reasons: Of every entry that matched, lowest rank first.
        caps: What to change in its `DeviceCaps`.
        options: `DelegateOptions` that suit it.
        sources: Where each of the reasons is documented; "" where its entry does not say.
    """

    verdict: Verdict = Verdict.ALLOW
    reasons: tuple[str, ...] = ()
    caps: Mapping[str, Any] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def denied(self) -> bool:
        """Whether the device is used only if an option names it."""
        return self.verdict is Verdict.DENY

    def is_gpu(self, info: DeviceInfo) -> bool:
        """Whether it is a real GPU, as far as its driver and the database know."""
        return info.is_gpu and bool(self.caps.get("is_gpu", True))


def judge(info: DeviceInfo, entries: Iterable[CompatEntry], system: str | None = None) -> Judgement:
    """Put together what all entries that match a device say.

    Entries of higher rank override those of lower rank, field by field; among equal ranks the
    later one holds. Nothing is opened.
    """
    system = platform.system().lower() if system is None else system
    found = [e for e in entries if e.matches(info, system)]
    found.sort(key=lambda e: e.rank)
    verdict = Verdict.ALLOW
    caps: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for entry in found:
        verdict = entry.verdict or verdict
        caps |= entry.caps
        options |= entry.options
    sources = tuple(e.source for e in found)
    return Judgement(verdict, tuple(str(e) for e in found), caps, options, sources)


def effective_caps(caps: DeviceCaps, judgement: Judgement) -> DeviceCaps:
    """A device's capabilities, without those that the database knows to be broken.

    Features can be switched off and limits lowered, never the other way around; cache size, number
    of compute units and vendor, which not every API reports, are replaced.
    """
    changes = {
        name: value if name in _FACTS else _lower(getattr(caps, name), value)
        for name, value in judgement.caps.items()
    }
    return attrs.evolve(caps, **changes)


def _lower(has: Any, value: Any) -> Any:
    if isinstance(has, bool):
        return has and value
    if isinstance(has, tuple):
        return tuple(min(a, b) for a, b in zip(has, value, strict=True))
    return min(has, value)
