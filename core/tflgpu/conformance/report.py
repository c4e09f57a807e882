"""What a backend supports, as the suite found it: the contents of ``support.json``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

from tflgpu.conformance.check import LEVELS, Check
from tflgpu.conformance.suite import Verdict
from tflgpu.runtime.protocols import DeviceInfo


@attrs.define
class Report:
    """Verdicts, counted."""

    device: DeviceInfo
    tolerance_scale: float = 1.0
    _verdicts: list[tuple[Check, Verdict]] = attrs.Factory(list)

    def add(self, check: Check, verdict: Verdict) -> None:
        """Count one."""
        self._verdicts.append((check, verdict))

    @property
    def counts(self) -> Counter[str]:
        """Verdicts by status."""
        return Counter(v.status for _, v in self._verdicts)

    @property
    def refusals(self) -> Counter[str]:
        """Reasons for refusals, with how many cases each stands for."""
        return Counter(v.detail for _, v in self._verdicts if v.status == "refused")

    def as_json(self) -> dict[str, Any]:
        """Op -> backend -> how far it is supported, and the counts of every level."""
        levels: dict[str, Counter[str]] = {name: Counter() for name in LEVELS}
        ops: dict[str, list[Verdict]] = {}
        for check, verdict in self._verdicts:
            levels[LEVELS[check.level]][verdict.status] += 1
            if check.level == LEVELS.index("ops"):
                ops.setdefault(check.op, []).append(verdict)
        return {
            "device": attrs.asdict(self.device),
            "tolerance_scale": self.tolerance_scale,
            "levels": {name: dict(sorted(c.items())) for name, c in levels.items() if c},
            "ops": {
                op: {self.device.backend: support(verdicts)} for op, verdicts in sorted(ops.items())
            },
        }

    def write(self, path: Path) -> None:
        """Write ``support.json``; a report of another backend that is there already is kept.

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
        path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def support(verdicts: list[Verdict]) -> dict[str, Any]:
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
