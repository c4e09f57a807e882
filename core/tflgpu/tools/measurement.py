"""What `tflgpu.benchmark` gives: values, and their forms for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import attrs

from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.memory_use import MemoryUse
from tflgpu.tools.check_outputs import Gap
from tflgpu.tools.copy_times import CopyTimes
from tflgpu.tools.energy import Energy
from tflgpu.tools.spread import LatencySpread
from tflgpu.tools.start import StartTimes
from tflgpu.tools.turns import Settings


@attrs.frozen
class Stages:
    """Parts of a call, medians in milliseconds; None is what the backend does not tell.

    Attributes:
        inputs: Copying inputs to where the run reads them, by the host.
        invoke: The run.
        device: Of it, the kernels, by the device's own timers, in runs of their own.
        copies: Of it, copying between host memory and the device's.
        outputs: Copying the outputs, by the host.
        to_device, to_host: Bytes that a run copies.
        reason: Why the device's time is not told; "" where it is, and for other runtimes.
    """

    inputs: float
    invoke: float
    outputs: float
    device: float | None = None
    copies: CopyTimes = attrs.Factory(CopyTimes)
    to_device: int | None = None
    to_host: int | None = None
    reason: str = ""


@attrs.frozen
class Measurement:
    """What was measured of one way to run a model. Times are milliseconds.

    Attributes:
        runtime: "tflgpu vulkan", "LiteRT CPU", ...
        precision: That was asked for.
        backend, device: Of tflgpu; empty for others, and where the CPU runs everything.
        failure: Why there are no numbers; "" where there are.
        note: Where operators run.
        latency: Of calls, from NumPy inputs to NumPy outputs.
        rate: Items in a second.
        stages: Parts of a call; None where calls overlap.
        first: The first run in this process.
        cold: A start with nothing kept, in a process of its own; None where it was not measured.
        kept: The next start.
        memory: Bytes that are allocated on the device; None where it does not tell.
        dispatches: Kernels that a run launches; None for other runtimes, and where none are.
        error: Largest differences of outputs from LiteRT's on the CPU; None where there are none
            to compare with.
        energy: None where it was not measured.
        warnings: Why the numbers should not be relied on.
        report: Where operators run, and why; None for other runtimes.
        times: Of each call, in their order.
    """

    runtime: str
    precision: str
    backend: str = ""
    device: str = ""
    failure: str = ""
    note: str = ""
    latency: LatencySpread | None = None
    rate: float | None = None
    stages: Stages | None = None
    first: float | None = None
    cold: StartTimes | None = None
    kept: StartTimes | None = None
    memory: MemoryUse | None = None
    dispatches: int | None = None
    error: Gap | None = None
    energy: Energy | None = None
    warnings: tuple[str, ...] = ()
    report: DelegationReport | None = attrs.field(default=None, repr=False)
    times: tuple[float, ...] = attrs.field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the times of single calls and the report."""
        return attrs.asdict(self, filter=lambda a, _: a.name not in {"report", "times"})

    @property
    def name(self) -> str:
        """The runtime and the precision."""
        return f"{self.runtime} {self.precision}".strip()

    def __str__(self) -> str:
        if self.latency is None:
            return f"{self.name}: {self.failure}"
        return (
            f"{self.name}: {self.latency.p50:.3f} ms (p95 {self.latency.p95:.3f}), "
            f"{self.rate:.1f} items/s"
        )


@attrs.frozen
class Benchmark:
    """What `benchmark` gives.

    Attributes:
        model: The file, or "bytes".
        settings: How the model was called, and for how long.
        measurements: tflgpu's, then those of other runtimes.
        notes: What a reader should know of all of them.
        started: When, in UTC.
        machine, versions: Where, and of what.
    """

    model: str
    settings: Settings
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]
    started: str
    machine: dict[str, Any] = attrs.field(repr=False)
    versions: dict[str, str] = attrs.field(repr=False)

    @property
    def fully_delegated(self) -> bool:
        """Whether tflgpu ran, and left no operator to the CPU, in each of its measurements."""
        own = [m.report for m in self.measurements if m.report is not None]
        failed = any(m.failure for m in self.measurements if m.runtime.startswith("tflgpu"))
        return bool(own) and not failed and all(r.backend and r.fully_delegated for r in own)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        found = attrs.asdict(self, filter=lambda a, _: a.name != "measurements")
        return found | {"measurements": [m.to_dict() for m in self.measurements]}

    def __str__(self) -> str:
        return "\n".join([f"{self.model}: {self.settings}", *map(str, self.measurements)])


def to_csv(benchmarks: Sequence[Benchmark]) -> str:
    """A table of comma-separated values with a line for each measurement."""
    rows = [
        {"model": b.model, "started": b.started, **_flat(attrs.asdict(b.settings), "settings_")}
        | _flat(m.to_dict())
        for b in benchmarks
        for m in b.measurements
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}_")
        else:
            is_list = isinstance(value, (list, tuple))
            found[prefix + name] = "; ".join(map(str, value)) if is_list else value
    return found
