"""What a report says: what became of each operator and of each part, and all of it in words."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from tflgpu.errors.blame import quoted
from tflgpu.lowering.reason import ReasonCode
from tflgpu.values import frozen


@frozen
class Inaccurate:
    """An operator whose result was off on the device, given the right operands.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        error: By how much: the largest difference as a share of the result's largest magnitude;
            None where values were NaN or infinite that should not be.
        reason: A sentence: by how much, and what made it so.
    """

    node: int
    op: str
    error: float | None
    reason: str


class AccuracyOutcome(enum.Enum):
    """The end of an accuracy guard's work on a graph.

    PENDING: nothing was compared yet. ACCURATE: nothing had to be done. REDONE: some operators, or
    all, were moved to f32. ON_CPU, KEPT, FAILED: f32 does not mend it, and the whole runs on the
    CPU, stays as it is, or is an error. UNCHECKED: there is nothing to compare with.
    """

    PENDING = "pending"
    ACCURATE = "accurate"
    REDONE = "redone"
    ON_CPU = "on_cpu"
    KEPT = "kept"
    FAILED = "failed"
    UNCHECKED = "unchecked"


@frozen
class AccuracyCheck:
    """The findings of an accuracy guard, and what it changed.

    Attributes:
        outcome: In a word.
        runs: Invocations that were compared.
        error: The largest error of an output in them, as it is now, a share of the output's largest
            magnitude; None where values are NaN or infinite, or nothing was compared.
        inaccurate: The operators that were off. Empty where the errors of many add up and none of
            them is to blame.
        redone: The operators that run in f32 now, by index: those, and what makes their operands
            where these need more than 16 bits; or all.
        story: What happened, in a sentence.
    """

    outcome: AccuracyOutcome
    runs: int = 0
    error: float | None = None
    inaccurate: tuple[Inaccurate, ...] = ()
    redone: tuple[int, ...] = ()
    story: str = "no invocation was compared yet"


#: Reasons that the log's one sentence has room for.
_MOST_REASONS = 3
#: Characters of one of them there.
_LONGEST_REASON = 200


class Place(enum.Enum):
    """Where an operator runs."""

    DEVICE = "device"
    CPU = "cpu"
    #: Worked out before the model runs, or merged into its neighbours: it takes no time.
    FOLDED = "folded"


@frozen
class Refusal:
    """An operator of the file that does not run on the device.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        reason: Why, and where possible what to do.
        runs_on: What runs it on the CPU ("LiteRT CPU kernels", with its version); empty where the
            NumPy references do.
        code: What kind of reason it is.
    """

    node: int
    op: str
    reason: str
    runs_on: str = ""
    code: ReasonCode = ReasonCode.UNSUPPORTED_FORM


@frozen
class InFloats:
    """An operator on quantized tensors that integer numerics leave to real numbers.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        reason: Why.
    """

    node: int
    op: str
    reason: str


@frozen
class CompositeReport:
    """A composite of the file, and what became of it.

    Attributes:
        name: Such as "odml.rms_norm".
        operators: Those that it is made of, by index.
        op: The op that stands for them; "" where they run as they are.
        reason: Why they do; "" where they do not.
    """

    name: str
    operators: tuple[int, ...]
    op: str
    reason: str


@frozen
class OperatorReport:
    """What became of one operator of the file.

    Attributes:
        node: Its index in the model file.
        op: Its name.
        inputs, outputs: Names of its tensors; "" for an absent optional one.
        place: Where it runs.
        backend, device: Where on the device; empty elsewhere.
        partition: Which part of the device's, from 0; None elsewhere.
        runs_on: What runs it on the CPU; empty elsewhere, and where the NumPy references do.
        code, reason: Why it is not on the device; None and empty where it is.
        seconds: Estimated, of a run; shared among operators that were merged. None without an
            estimate.
        gain: Estimated seconds that the CPU would take more, the way to the device and back left
            out; None where it is not on the device.
    """

    node: int
    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    place: Place = Place.CPU
    backend: str = ""
    device: str = ""
    partition: int | None = None
    runs_on: str = ""
    code: ReasonCode | None = None
    reason: str = ""
    seconds: float | None = None
    gain: float | None = None


@frozen
class PartitionReport:
    """A part of the graph on the device.

    Attributes:
        number: From 0, in the order in which they run.
        operators: The file's, by index.
        dispatches: Kernels that a run launches.
        seconds: Estimated, of a run, with the transfers there and back; None without an estimate.
        gain: Estimated seconds that the CPU would take more; less than nothing where everything
            goes to the device that can.
    """

    number: int
    operators: tuple[int, ...]
    dispatches: int
    seconds: float | None = None
    gain: float | None = None


@frozen
class TunedDispatch:
    """A dispatch whose kernel was chosen by measuring (docs/tuning.md).

    Attributes:
        operators: The file's, by index, that it stands for.
        choice: What was chosen: its kind, and the name of the candidate.
    """

    operators: tuple[int, ...]
    choice: str


def numbers(nodes: Iterable[int], most: int = 4) -> str:
    """Operators of the file by their indices, shortly: "#1, #2 and 3 more"."""
    every = list(nodes)
    shown = ", ".join(f"#{n}" for n in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


@frozen
class ReportFields:
    """Where the operators of a model run, as fields and in words; `DelegationReport` can print them
    too.

    Attributes:
        total_nodes: Operators in the file, less those that only compute constants and were worked
            out while it was read.
        delegated_nodes: Of those, the ones the device stands for (folded ones included).
        refusals: One per operator that stays on the CPU.
        partitions: Parts of the graph on the device.
        dispatches: Kernels launched per inference.
        backend, device: Where; empty without a delegate.
        precision: "f32", "f16" or "f32_f16"; empty without a delegate.
        choice: Why this backend and device, and this precision.
        integers: Operators that are computed on the numbers as they are stored, by index; only with
            integer numerics.
        in_floats: With integer numerics, the operators on quantized tensors that are computed on
            real numbers nevertheless, with reasons.
        operators: One per operator, by index.
        parts: One per part on the device.
        partitioning: "gain" or "all": what goes to the device of all that it can run; empty without
            a device.
        partitioning_reason: Why that.
        estimates: What estimates of time are made of: measured figures, or round ones; empty where
            there are none.
        measured: Whether they were measured, on this machine.
        seconds: Estimated, of a run as it is; None without an estimate.
        cpu_seconds: Estimated, of a run wholly on the CPU.
        accuracy: What the accuracy guard found; None without one.
        composites: What became of the file's composites, where there is a device.
        tuned: The dispatches whose kernels were chosen by measuring.
    """

    total_nodes: int
    delegated_nodes: int
    refusals: tuple[Refusal, ...] = ()
    partitions: int = 0
    dispatches: int = 0
    backend: str = ""
    device: str = ""
    precision: str = ""
    choice: tuple[str, ...] = ()
    integers: tuple[int, ...] = ()
    in_floats: tuple[InFloats, ...] = ()
    operators: tuple[OperatorReport, ...] = ()
    parts: tuple[PartitionReport, ...] = ()
    partitioning: str = ""
    partitioning_reason: str = ""
    estimates: str = ""
    measured: bool = False
    seconds: float | None = None
    cpu_seconds: float | None = None
    accuracy: AccuracyCheck | None = None
    composites: tuple[CompositeReport, ...] = ()
    tuned: tuple[TunedDispatch, ...] = ()

    @property
    def fully_delegated(self) -> bool:
        """Whether nothing is left for the CPU."""
        return not self.refusals and self.delegated_nodes == self.total_nodes

    @property
    def summary(self) -> str:
        """One line: how many operators run where."""
        if not self.backend:
            return f"{self.total_nodes} of {self.total_nodes} operators run on the CPU{self._cpu}"
        where = f"{self.backend} ({self.device}, {self.precision})"
        summary = f"{self.delegated_nodes} of {self.total_nodes} operators run on {where}"
        return f"{summary}, {len(self.integers)} of them in integers" if self.integers else summary

    @property
    def sentence(self) -> str:
        """One line: how many operators run where, and why not all on the device; what the log says.

        For example "2 of 3 operators run on opencl (a GPU, f32); 1 on the CPU (LiteRT CPU kernels):
        SVDF: tensor x is i8, which stays on the CPU (1 operator); see the report".
        """
        if not self.refusals:
            return self.summary
        reasons: dict[str, list[str]] = {}
        for refusal in self.refusals:
            reasons.setdefault(refusal.reason, []).append(refusal.op)
        told = [_clause(ops, reason) for reason, ops in reasons.items()]
        if len(told) > _MOST_REASONS:
            told[_MOST_REASONS:] = [f"{len(told) - _MOST_REASONS} more reasons"]
        start = self.summary
        if self.backend:
            names = {r.runs_on for r in self.refusals}
            name = names.pop() if len(names) == 1 else ""
            start += f"; {len(self.refusals)} on the CPU" + (f" ({name})" if name else "")
        return f"{start}: {'; '.join(told)}; see the report"

    @property
    def _cpu(self) -> str:
        """What runs the operators on the CPU, where it is the same for all."""
        names = {r.runs_on or "NumPy references" for r in self.refusals}
        return f" by {names.pop()}" if len(names) == 1 else ""

    @property
    def common_reason(self) -> str | None:
        """The reason why everything runs on the CPU, where it is one for all operators."""
        reasons = {r.reason for r in self.refusals}
        is_one = len(reasons) == 1 and len(self.refusals) == self.total_nodes
        return reasons.pop() if is_one else None

    @property
    def told_composites(self) -> list[str]:
        """A line for all composites of one name that one thing became of."""
        counts: dict[tuple[str, str], list[int]] = {}
        for found in self.composites:
            became = f"one {found.op}" if found.op else f"its operators: {found.reason}"
            counts.setdefault((found.name, became), []).append(min(found.operators, default=0))
        return [
            f"  composite {quoted(name)} (at {numbers(at)}) runs as {became}"
            for (name, became), at in counts.items()
        ]

    def __str__(self) -> str:
        if self.common_reason is not None:
            return f"{self.summary}: {self.common_reason}"
        lines = [self.summary, *(f"  #{r.node} {r.op}: {r.reason}{_by(r)}" for r in self.refusals)]
        lines += [f"  #{f.node} {f.op} in floats: {f.reason}" for f in self.in_floats]
        lines += self.told_composites
        if self.accuracy is not None:
            lines.append(f"  accuracy guard: {self.accuracy.story}")
            lines += [f"  #{i.node} {i.op}: {i.reason}" for i in self.accuracy.inaccurate]
        return "\n".join(lines)


def _by(refusal: Refusal) -> str:
    return f"; run by {refusal.runs_on}" if refusal.runs_on else ""


def _clause(ops: Sequence[str], reason: str) -> str:
    """A reason, and the operators that it holds for."""
    line = " ".join(reason.split())
    if len(line) > _LONGEST_REASON:
        line = f"{line[:_LONGEST_REASON]}..."
    names = list(dict.fromkeys(ops))
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    count = "1 operator" if len(ops) == 1 else f"{len(ops)} operators"
    return f"{listed}: {line} ({count})"
