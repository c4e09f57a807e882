"""Where the time of a run goes: the values that `Interpreter.profile` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tflgpu.compiler.machines import Limits
from tflgpu.compiler.report import DelegationReport
from tflgpu.values import frozen


@frozen
class DispatchProfile:
    """One dispatch of a run.

    Attributes:
        label: The node that it computes.
        kernel: Its kernel.
        operators: The file's operators that it stands for, by index in their subgraph.
        ops: Their names.
        seconds: How long it took, by the device's clock.
        start: Seconds since the first dispatch of its part began; None where the device does not
            tell.
        nbytes: Bytes of the buffers that it is bound to, each counted once. A kernel that touches
            only some of a buffer moves fewer.
        flops: Floating-point operations of its operators, as the file has them (a multiply-add is
            two); 0 where they only move data, or where it is not known. Operators that take
            several dispatches are divided among these by time.
    """

    label: str
    kernel: str
    operators: tuple[int, ...]
    ops: tuple[str, ...]
    seconds: float
    start: float | None = None
    nbytes: int = 0
    flops: float = 0.0

    def of_limit(self, limits: Limits) -> float | None:
        """The larger of its shares of what the device can move and compute in the same time. Above
        1 where data come from a cache, or matrix units compute. None where it took no time."""
        if not self.seconds:
            return None
        needed = max(self.nbytes / limits.bandwidth, self.flops / limits.arithmetic)
        return needed / self.seconds


@frozen
class PartProfile:
    """One call of a part of the graph: on the device, or on the CPU.

    Attributes:
        label: The part in a few words.
        subgraph: The subgraph that its operators are of; None of a loop's or branch's body.
        on_cpu: Whether the CPU runs it.
        operators, ops: The operators that it stands for, as in `DispatchProfile`.
        runs_on: What runs it.
        start: Seconds since the run began, by the host's clock.
        seconds: How long the call took, by the host's clock.
        dispatches: In their order; none where they were not timed.
        reason: Why they were not; "" where they were, and of what the CPU runs.
    """

    label: str
    subgraph: int | None
    on_cpu: bool
    operators: tuple[int, ...]
    ops: tuple[str, ...]
    runs_on: str
    start: float
    seconds: float
    dispatches: tuple[DispatchProfile, ...] = ()
    reason: str = ""

    @property
    def busy(self) -> float:
        """Seconds of its dispatches."""
        return sum(d.seconds for d in self.dispatches)

    @property
    def span(self) -> float:
        """Seconds from the beginning of the first dispatch to the end of the last; `busy` where
        the device does not tell when they began."""
        ends = [d.start + d.seconds for d in self.dispatches if d.start is not None]
        return max(ends) if ends else self.busy


@frozen
class RunProfile:
    """One run of a model with timers: of several, the one whose time is the median.

    Attributes:
        report: Where the operators run.
        seconds: Of that run, from the call of `invoke` to its return.
        plain: Median seconds of as many runs without timers.
        runs: How many there were of each.
        parts: Calls of parts, in their order.
        flops: Operations of the main subgraph's operators, by index; none of those that only move
            data.
        limits: What the device can do; None where that was not measured.
        no_limits: Why not.
    """

    report: DelegationReport
    seconds: float
    plain: float
    runs: int
    parts: tuple[PartProfile, ...]
    flops: Mapping[int, float] = attrs.Factory(dict)
    limits: Limits | None = None
    no_limits: str = ""

    @property
    def dispatches(self) -> Sequence[DispatchProfile]:
        """Of all parts."""
        return [d for part in self.parts for d in part.dispatches]

    @property
    def no_times(self) -> str:
        """Why the device's dispatches have no times; "" where they have, or there are none."""
        return next((part.reason for part in self.parts if part.reason), "")

    @property
    def steps(self) -> dict[str, float]:
        """Seconds by what the time goes to, together those of the run."""
        timed = [part for part in self.parts if part.dispatches]
        untimed = [part for part in self.parts if not part.dispatches and not part.on_cpu]
        on_cpu = [part for part in self.parts if part.on_cpu]
        busy, span = sum(p.busy for p in timed), sum(p.span for p in timed)
        found = {
            "dispatches": busy,
            "between dispatches": span - busy,
            "submission, copies, waiting": sum(p.seconds for p in timed) - span,
            "parts on the device without timers": sum(p.seconds for p in untimed),
            "parts on the CPU": sum(p.seconds for p in on_cpu),
            "host, outside of parts": self.seconds - sum(p.seconds for p in self.parts),
        }
        # Clocks that disagree would give less than nothing: then the steps are more than the run.
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    @property
    def by_operator(self) -> dict[int, float]:
        """Seconds of each operator of the main subgraph whose time is known: of timed dispatches,
        and of calls for one operator alone. A dispatch of several is divided among them by their
        operations, or equally where they only move data."""
        found: dict[int, float] = {}
        own = [part for part in self.parts if part.subgraph == 0]
        for part in own:
            if not part.dispatches and len(part.operators) == 1:
                (only,) = part.operators
                found[only] = found.get(only, 0.0) + part.seconds
        for dispatch in (d for part in own for d in part.dispatches):
            weights = {o: self.flops.get(o, 0.0) for o in dispatch.operators}
            total = sum(weights.values())
            for operator, weight in weights.items():
                share = weight / total if total else 1 / len(weights)
                found[operator] = found.get(operator, 0.0) + share * dispatch.seconds
        return found
