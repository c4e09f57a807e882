"""The devices that were considered, and why each was chosen or not."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tflgpu.compat.entry import Judgement
from tflgpu.contract.device import DeviceInfo
from tflgpu.values import define, frozen


@frozen
class Candidate:
    """A device that could be used."""

    info: DeviceInfo
    judgement: Judgement
    rank: int
    allowed: bool

    @property
    def label(self) -> str:
        """The name that reasons use: backend, index, and the device's name."""
        return f"{self.info.backend} device {self.info.index} ({self.info.name})"

    @property
    def is_gpu(self) -> bool:
        """A real one."""
        return self.judgement.is_gpu(self.info)

    @property
    def order(self) -> tuple[bool, bool, int, str, int]:
        """Best first. A backend lists its best device first."""
        return not self.allowed, not self.is_gpu, -self.rank, self.info.backend, self.info.index

    @property
    def kind(self) -> str:
        """The device as messages describe it."""
        return "a GPU" if self.is_gpu else "no GPU, but the best there is: it computes on the CPU"


@frozen
class ExaminedDevice:
    """A device that was looked at, and what became of it.

    Attributes:
        device: Which one.
        judgement: What the device database says of it.
        rank: Its backend's.
        seconds: Of the test plan; None where it was not measured.
        remembered: The time is of an earlier measurement.
        chosen: It is the one to use.
        why: Why it was chosen, or why not, in a sentence.
    """

    device: DeviceInfo
    judgement: Judgement
    rank: int
    seconds: float | None
    remembered: bool
    chosen: bool
    why: str


@define
class Notes:
    """Collects, while a device is chosen, what is to be said of each.

    Attributes:
        reasons: In the order in which they were found.
    """

    reasons: list[str]
    _failures: dict[DeviceInfo, str] = attrs.field(factory=dict)
    _times: dict[DeviceInfo, tuple[float, bool]] = attrs.field(factory=dict)

    def say(self, candidate: Candidate, text: str) -> None:
        """A reason that is about a device."""
        self.reasons.append(f"{candidate.label}: {text}")

    def failed(self, candidate: Candidate, text: str) -> None:
        """A reason that keeps a device from being used."""
        self._failures[candidate.info] = text
        self.say(candidate, text)

    def timed(self, candidate: Candidate, seconds: float, *, remembered: bool) -> None:
        """The time of the test plan."""
        self._times[candidate.info] = seconds, remembered
        before = ", measured before" if remembered else ""
        self.say(candidate, f"{milliseconds(seconds)} for the test plan{before}")

    def considered(
        self, candidates: Sequence[Candidate], chosen: Candidate | None
    ) -> tuple[ExaminedDevice, ...]:
        """All of them, with what was noted."""
        found = []
        for one in candidates:
            seconds, remembered = self._times.get(one.info, (None, False))
            found.append(
                ExaminedDevice(
                    one.info,
                    one.judgement,
                    one.rank,
                    seconds,
                    remembered,
                    chosen is not None and one.info == chosen.info,
                    self._why(one, chosen),
                )
            )
        return tuple(found)

    def _why(self, one: Candidate, chosen: Candidate | None) -> str:
        failure = self._failures.get(one.info, "")
        if chosen is not None and one.info == chosen.info:
            return f"chosen: {one.kind}" + (f"; {failure}" if failure else "")
        if failure:
            return failure
        if chosen is None or not one.allowed:
            return "left out by the device database"
        if chosen.is_gpu and not one.is_gpu:
            return "not needed: it computes on the CPU, and there is a GPU"
        own, best = (self._times.get(c.info, (None, False))[0] for c in (one, chosen))
        if own is None or best is None:
            return f"not needed: {chosen.label} comes before it"
        if own < best:
            return f"not enough faster than {chosen.label}, whose backend has a higher rank"
        return f"not faster than {chosen.label}"


def milliseconds(seconds: float) -> str:
    """A time as people read it."""
    return f"{seconds * 1e3:.3g} ms"
