"""What went where, and why not: the answer to "was my model delegated?"."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import attrs

from tflgpu.compiler.compile import Compiled
from tflgpu.errors import UnsupportedError
from tflgpu.ir.graph import Graph


@attrs.frozen
class Refusal:
    """An operator of the file that does not run on the device.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        reason: Why, and where possible what to do.
        runs_on: What runs it on the CPU ("LiteRT CPU kernels", with its version); empty where the
            NumPy references do.
    """

    node: int
    op: str
    reason: str
    runs_on: str = ""


@attrs.frozen
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


@attrs.frozen
class Inaccurate:
    """An operator whose result was off on the device, given the right operands.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        error: By how much: the largest difference as a share of the result's largest magnitude; None
            where values were NaN or infinite that should not be.
        reason: A sentence: by how much, and what made it so.
    """

    node: int
    op: str
    error: float | None
    reason: str


class AccuracyOutcome(enum.Enum):
    """What became of a graph that an accuracy guard watched.

    PENDING: nothing was compared yet. ACCURATE: nothing had to be done. REDONE: some operators, or
    all, were moved to f32. ON_CPU, KEPT, FAILED: f32 does not mend it, and the whole runs on the CPU,
    stays as it is, or is an error. UNCHECKED: there is nothing to compare with.
    """

    PENDING = "pending"
    ACCURATE = "accurate"
    REDONE = "redone"
    ON_CPU = "on_cpu"
    KEPT = "kept"
    FAILED = "failed"
    UNCHECKED = "unchecked"


@attrs.frozen
class AccuracyCheck:
    """What an accuracy guard found, and did.

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


@attrs.frozen
class DelegationReport:
    """Where the operators of a model run.

    Attributes:
        total_nodes: Operators in the file.
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
        accuracy: What the accuracy guard found; None without one.
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
    accuracy: AccuracyCheck | None = None

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
    def _cpu(self) -> str:
        """Who runs what is on the CPU, where it is one for all operators."""
        names = {r.runs_on for r in self.refusals}
        name = names.pop() if len(names) == 1 else ""
        return f" by {name}" if name else ""

    @property
    def common_reason(self) -> str | None:
        """The reason why everything runs on the CPU, where it is one for all operators."""
        reasons = {r.reason for r in self.refusals}
        is_one = len(reasons) == 1 and len(self.refusals) == self.total_nodes
        return reasons.pop() if is_one else None

    def __str__(self) -> str:
        if self.common_reason is not None:
            return f"{self.summary}: {self.common_reason}"
        lines = [self.summary, *(f"  #{r.node} {r.op}: {r.reason}{_by(r)}" for r in self.refusals)]
        lines += [f"  #{f.node} {f.op} in floats: {f.reason}" for f in self.in_floats]
        if self.accuracy is not None:
            lines.append(f"  accuracy guard: {self.accuracy.story}")
            lines += [f"  #{i.node} {i.op}: {i.reason}" for i in self.accuracy.inaccurate]
        return "\n".join(lines)


def _by(refusal: Refusal) -> str:
    return f"; run by {refusal.runs_on}" if refusal.runs_on else ""


def placed(report: DelegationReport, names: Mapping[int, str]) -> DelegationReport:
    """The same with what runs the operators on the CPU, by their index in the file."""
    refusals = tuple(attrs.evolve(r, runs_on=names.get(r.node, "")) for r in report.refusals)
    return attrs.evolve(report, refusals=refusals)


def refusals_of(graph: Graph, compiled: Compiled) -> tuple[Refusal, ...]:
    """One for each operator of the file that stays on the CPU; ``graph`` is what was compiled."""
    names = _names(graph)
    found: dict[int, Refusal] = {}  # an operator's simulator says nothing new
    for left in compiled.refusals:
        for origin in left.origins:
            found.setdefault(origin, Refusal(origin, names[origin], left.reason))
    return tuple(found.values())


def report_of(graph: Graph, compiled: Compiled) -> DelegationReport:
    """Where the operators run; which device it is, is for its owner to add."""
    total = set(_names(graph))
    refusals = refusals_of(graph, compiled)
    refused = {refusal.node for refusal in refusals}
    on_device = compiled.delegated
    report = DelegationReport(
        total_nodes=len(total),
        # What the passes folded away costs nothing; it counts as done by the device.
        delegated_nodes=len(total - refused) if on_device or not refused else 0,
        refusals=refusals,
        partitions=len(on_device),
        dispatches=sum(part.dispatches for part in on_device),
    )
    return with_numerics(report, graph, compiled.integers, compiled.in_floats)


def with_numerics(
    report: DelegationReport, graph: Graph, integers: Iterable[int], in_floats: Mapping[int, str]
) -> DelegationReport:
    """A report that says what quantized operators are computed on; ``graph`` is the file's."""
    names = _names(graph)
    return attrs.evolve(
        report,
        integers=tuple(sorted(integers)),
        in_floats=tuple(InFloats(at, names[at], why) for at, why in sorted(in_floats.items())),
    )


def _names(graph: Graph) -> dict[int, str]:
    return {origin: node.op for node in graph for origin in node.origins}


def insist(report: DelegationReport, device: str) -> None:
    """Accept a report only if nothing is left for the CPU.

    Raises:
        UnsupportedError: something is; lists the operators with the reasons.
    """
    if report.refusals:
        listed = "; ".join(f"#{r.node} {r.op}: {r.reason}" for r in report.refusals)
        raise UnsupportedError(
            f"{len(report.refusals)} operators cannot run on {device} and allow_fallback is off: "
            f"{listed}"
        )
