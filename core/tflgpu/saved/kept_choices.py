"""Measured choices among kernels, kept in the cache folder: a file for each device, driver, and
state of the code, so that what was measured of other kernels is never used.

A release brings those of some devices besides, as files in ``device_choices`` beside this one:
``tflgpu tune MODEL... --table FILE`` writes one. Their names are made by `table_name`. What was
measured here comes before them. A row counts where the candidate that it names is still there, and
the one that it was faster than is still predicted: it never changes what a kernel computes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs

from tflgpu.cache.disk_cache import DiskCache, cache_folder, cache_key
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import SavedModelError
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.choices import Choices
from tflgpu.plugins.sources import Plugin
from tflgpu.saved.facts import facts_of
from tflgpu.values import frozen

_TABLES = Path(__file__).parent / "device_choices"


@frozen
class KeptChoice:
    """What was measured of a problem.

    Attributes:
        name: Of the fastest candidate.
        predicted: Of the one that is taken without measurements.
        timed: How many candidates were compared.
        before, after: Seconds of the predicted one and of the fastest, for all kernels of the
            problem in the model by which it was measured.
    """

    name: str
    predicted: str
    timed: int
    before: float
    after: float


@frozen
class TimedCandidate:
    """A way to write the kernels of a problem that was timed.

    Attributes:
        name: As in a `KeptChoice`.
        cost: Predicted, in any unit.
        seconds: Of all kernels of the problem.
    """

    name: str
    cost: float
    seconds: float


@frozen
class WholeRun:
    """Runs of a model before and after some kernels were exchanged.

    Attributes:
        before, after: Median seconds.
        refusal: Why the model stays as it was; "" where it does not.
    """

    before: float
    after: float
    refusal: str


@frozen
class Tuning:
    """What became of a model by tuning.

    Attributes:
        backend, device: Where it was timed.
        effort: "fast" or "exhaustive".
        problems: How many problems with several candidates the model has.
        found: Of those that were timed now, by key; the rest were measured before.
        changed: Of these, the ones that have other kernels from now on.
        run: Runs of the model's parts on the device, as it was and with what was found; None where
            nothing faster was found. If these are refused, nothing of it is kept.
        seconds: How long it took.
        times: Of the problems that were timed now, by key, the candidates, as they were timed.
    """

    backend: str
    device: str
    effort: str
    problems: int
    found: Mapping[str, KeptChoice]
    changed: Mapping[str, KeptChoice]
    run: WholeRun | None
    seconds: float
    times: Mapping[str, Sequence[TimedCandidate]]

    def __str__(self) -> str:
        timed, changed = len(self.found), len(self.changed)
        said = (
            f"{self.problems} problems on {self.backend} ({self.device}): {timed} timed, "
            f"{self.problems - timed} known before; {changed} have faster kernels"
        )
        if self.run is not None:
            said += f"; a run takes {self.run.after * 1e3:.3f} ms, "
            said += f"before {self.run.before * 1e3:.3f} ms"
            said += f": {self.run.refusal}, so nothing is kept" if self.run.refusal else ""
        return f"{said} ({self.seconds:.1f} s)"


class KeptChoices:
    """Those of a device, in a cache folder or in memory alone. Safe to share between processes."""

    def __init__(
        self,
        device: DeviceInfo,
        caps: DeviceCaps,
        plugins: Iterable[Plugin],
        *,
        on_disk: bool = True,
    ) -> None:
        """Read those of the disk. Where a plugin's code cannot be told apart, nothing is read or
        written."""
        self.device = device
        self.known: dict[str, KeptChoice] = {}
        # What a full disk does not take is here alone.
        self._own: dict[str, KeptChoice] = {}
        self._key = ""
        self._disk: DiskCache | None = None
        if not on_disk:
            return
        with suppress(SavedModelError):
            facts = facts_of(device, caps, plugins)
            self._key = cache_key("choices", *(text for fact in facts for text in fact))
            self._disk = DiskCache(cache_folder("choices"), ".json")
        self._read()

    @property
    def digest(self) -> str:
        """Changes with what is chosen; "" where nothing is known."""
        names = sorted((key, kept.name) for key, kept in self.known.items())
        return hashlib.sha256(repr(names).encode()).hexdigest()[:16] if names else ""

    def choices(self) -> Choices:
        """As a compiler takes them, with those that the release brings."""
        names = {key: kept.name for key, kept in self.known.items()}
        return Choices(names, self.digest, shipped=_shipped(self.device))

    def add(self, found: Mapping[str, KeptChoice]) -> None:
        """Keep some more. A full or read-only disk is no error: this process has them."""
        self._own.update(found)
        with nullcontext() if self._disk is None else self._disk.building(self._key):
            self._read()
            self.known = {**self.known, **self._own}
            if self._disk is not None:
                content = {
                    "device": f"{self.device.backend}: {self.device.name}",
                    "choices": {key: attrs.asdict(kept) for key, kept in self.known.items()},
                }
                text = json.dumps(content, indent=1, sort_keys=True)
                self._disk.store(self._key, text.encode())

    def table(self) -> str:
        """The content of a file for a release: candidates that are faster than the predicted
        ones."""
        rows = {
            key: {kept.predicted: kept.name}
            for key, kept in sorted(self.known.items())
            if kept.name != kept.predicted
        }
        about = {"backend": self.device.backend, "device": self.device.name}
        return json.dumps({**about, "choices": rows}, indent=1) + "\n"

    def _read(self) -> None:
        data = self._disk.load(self._key) if self._disk else None
        if self._disk is None or data is None:
            return
        try:
            choices = json.loads(data)["choices"]
            self.known = {key: _choice(**row) for key, row in choices.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._disk.drop(self._key, f"it has no choices: {error}")


def _choice(name: str, predicted: str, timed: Any, before: Any, after: Any) -> KeptChoice:
    if not (isinstance(name, str) and isinstance(predicted, str)):
        raise TypeError("a candidate without a name")
    return KeptChoice(name, predicted, int(timed), float(before), float(after))


def table_name(device: DeviceInfo) -> str:
    """The name of a release's file for a device."""
    return re.sub(r"[^a-z0-9]+", "-", f"{device.backend} {device.name}".lower()).strip("-")


def _shipped(device: DeviceInfo) -> dict[str, dict[str, str]]:
    path = _TABLES / f"{table_name(device)}.json"
    if not path.is_file():
        return {}
    rows: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["choices"]
    return rows
