"""What a backend supports, as the suite found it: the contents of ``support.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tflgpu.conformance.suite import CheckFinding
from tflgpu.conformance.target import LEVELS, Check
from tflgpu.contract.device import DeviceInfo

#: Statuses of cases whose numbers were looked at.
_RAN = ("passed", "expected", "failed")
_OP_LEVELS = (LEVELS.index("ops"), LEVELS.index("generated"))


@attrs.frozen
class CheckVerdict:
    """What came of one check, in values that go from process to process.

    Attributes:
        level: Which of `LEVELS` the check belongs to.
        op: The op it is about, "" where it is about none.
        status, detail: As `CheckFinding` has them.
    """

    level: int
    op: str
    status: str
    detail: str


@attrs.define
class Report:
    """Verdicts, counted.

    Attributes:
        device: What was tested.
        tolerance_scale: Factor on every tolerance.
        ops: Every op that the suite has cases of.
        declared: Ops that there are kernels for on the device, as far as is known before asking.
    """

    device: DeviceInfo
    tolerance_scale: float = 1.0
    ops: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    _verdicts: list[CheckVerdict] = attrs.Factory(list)

    def add(self, check: Check, verdict: CheckFinding) -> None:
        """Count one."""
        self._verdicts.append(CheckVerdict(check.level, check.op, verdict.status, verdict.detail))

    def as_message(self) -> dict[str, Any]:
        """It as lists and texts, from one of the processes that share a run's checks."""
        return {
            "device": list(attrs.astuple(self.device)),
            "tolerance_scale": self.tolerance_scale,
            "ops": sorted(self.ops),
            "declared": sorted(self.declared),
            "verdicts": [list(attrs.astuple(each)) for each in self._verdicts],
        }

    @classmethod
    def of_messages(cls, messages: Sequence[Mapping[str, Any]]) -> Report:
        """What several processes (at least one) found of one device."""
        first = messages[0]
        return cls(
            DeviceInfo(*first["device"]),
            first["tolerance_scale"],
            frozenset(first["ops"]),
            frozenset(first["declared"]),
            [CheckVerdict(*each) for message in messages for each in message["verdicts"]],
        )

    @property
    def counts(self) -> Counter[str]:
        """Verdicts by status."""
        return Counter(v.status for v in self._verdicts)

    @property
    def refusals(self) -> Counter[str]:
        """Reasons for refusals, with how many cases each stands for."""
        return Counter(v.detail for v in self._verdicts if v.status == "refused")

    @property
    def levels(self) -> dict[str, Counter[str]]:
        """Verdicts by status, of every level that was asked about."""
        found: dict[str, Counter[str]] = {name: Counter() for name in LEVELS}
        for each in self._verdicts:
            found[LEVELS[each.level]][each.status] += 1
        return {name: counts for name, counts in found.items() if counts}

    @property
    def ran(self) -> frozenset[str]:
        """Ops of which the device ran a case of level 2 or 3, right or wrong."""
        return frozenset(
            each.op
            for each in self._verdicts
            if each.op and each.level in _OP_LEVELS and each.status in _RAN
        )

    @property
    def idle_levels(self) -> list[str]:
        """Levels that were asked about and of which nothing ran."""
        return [n for n, counts in self.levels.items() if not ran_of(counts)]

    @property
    def hollow(self) -> dict[str, str]:
        """Ops that are declared, and every case of which was refused: with the first reason."""
        found: dict[str, str] = {}
        unseen = self.declared - self.ran
        for each in self._verdicts:
            if each.status == "refused" and each.op in unseen:
                found.setdefault(each.op, each.detail)
        return found

    def reasons(self, level: str) -> Counter[str]:
        """Why cases of a level did not run, with how many each reason stands for."""
        return Counter(
            v.detail for v in self._verdicts if LEVELS[v.level] == level and v.status not in _RAN
        )

    def coverage(self) -> dict[str, Any]:
        """How much of what there is was run, for ``support.json``."""
        counts = self.counts
        return {
            "ops": {"ran": len(self.ran), "of": len(self.ops)},
            "cases": {"ran": ran_of(counts), "of": sum(counts.values())},
            "levels": {
                name: {
                    "ran": ran_of(of_level),
                    "of": sum(of_level.values()),
                    "not_run": dict(self.reasons(name).most_common()),
                }
                for name, of_level in self.levels.items()
            },
            "nothing_ran_of": self.idle_levels,
            "declared_and_refused": self.hollow,
        }

    def as_json(self) -> dict[str, Any]:
        """Op -> backend -> how far it is supported, the counts of every level, the coverage."""
        ops: dict[str, list[CheckVerdict]] = {}
        for each in self._verdicts:
            if each.level == LEVELS.index("ops"):
                ops.setdefault(each.op, []).append(each)
        return {
            "device": attrs.asdict(self.device),
            "tolerance_scale": self.tolerance_scale,
            "coverage": self.coverage(),
            "levels": {name: dict(sorted(c.items())) for name, c in self.levels.items()},
            "ops": {
                op: {self.device.backend: support(verdicts)} for op, verdicts in sorted(ops.items())
            },
        }

    def write(self, path: Path) -> None:
        """Write ``support.json``, in a new folder if need be; a report of another backend that is
        there already is kept.

        Raises:
            OSError: it cannot be written.
        """
        own = self.as_json()
        backend = self.device.backend
        merged: dict[str, Any] = {"backends": {}, "ops": {}}
        if path.exists():
            merged = json.loads(path.read_text(encoding="utf-8"))
        merged["backends"][backend] = {k: v for k, v in own.items() if k != "ops"}
        for op, of_backend in own["ops"].items():
            merged["ops"].setdefault(op, {}).update(of_backend)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def ran_of(counts: Counter[str]) -> int:
    """How many of some verdicts are of cases that the device ran, right or wrong."""
    return sum(counts[status] for status in _RAN)


def support(verdicts: list[CheckVerdict]) -> dict[str, Any]:
    """How far an op is supported: "full" where no sample is refused or wrong, "none" where no
    sample passes, else "partial", with the reasons."""
    counts = Counter(v.status for v in verdicts)
    bad = counts["refused"] + counts["expected"] + counts["failed"]
    level = "none" if not counts["passed"] else "partial" if bad else "full"
    reasons = Counter(v.detail for v in verdicts if v.status in ("refused", "expected", "failed"))
    return {
        "support": level,
        "counts": dict(sorted(counts.items())),
        "reasons": [text for text, _ in reasons.most_common()],
    }
