"""All facts that the database states about one device."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from tflgpu.compat.entry import CompatEntry, Verdict
from tflgpu.contract.device import DeviceInfo
from tflgpu.language.caps import DeviceCaps
from tflgpu.values import frozen

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
