"""The result of compiling: parts of a graph, each with the plan that a device loads or with its
nodes, and the reasons of operators that stay on the CPU, for want of memory too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tflgpu.compiler.machines import ROUND_FIGURES, Cost, TimeModel
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.report_values import CompositeReport
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.reason import ReasonCode
from tflgpu.values import frozen

_LESS_MEMORY = "; inference_priority1=MIN_MEMORY_USAGE takes less"


@frozen(eq=False)
class Part:
    """Nodes that run together.

    Attributes:
        nodes: In an order in which they can run.
        delegated: On the device; else on the CPU.
        inputs: Values read but not made here; constants and variables are not among them. A plan
            has the `states` behind its inputs, and their new contents behind its outputs.
        outputs: Values made here that other parts read or the graph gives out.
        gain: Estimated seconds saved a run by delegating, the way to the device and back
            subtracted. A rough guess, for ranking; 0 for parts on the CPU.
        seconds: Estimated seconds of a run where it is, with what it takes to get there.
        costs: Estimated seconds of each node on both sides, in the order of the nodes.
        plan: Their kernels, once they are compiled; None on the CPU, and for a device that runs
            nodes.
        count: How many nodes there are, also where the nodes themselves were left out
            (`tflgpu.saved.start`).
    """

    nodes: tuple[Node, ...]
    delegated: bool
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    gain: float = 0.0
    seconds: float = 0.0
    costs: tuple[Cost, ...] = ()
    plan: Plan | None = None
    count: int = attrs.field()

    @count.default
    def _all(self) -> int:
        return len(self.nodes)

    @property
    def states(self) -> tuple[Value, ...]:
        """The variables that its nodes read and change."""
        return states_of(self.nodes)

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.count} nodes on the {'device' if self.delegated else 'CPU'}"

    @property
    def dispatches(self) -> int:
        """Kernels that a run launches."""
        return 0 if self.plan is None else len(self.plan.dispatches)


@frozen
class Declined:
    """A node that stays on the CPU.

    Attributes:
        label: The node, as messages name it.
        op: Its op.
        origins: The file's operators that it stands for.
        reason: Why.
        code: What kind of reason it is.
    """

    label: str
    op: str
    origins: tuple[int, ...]
    reason: str
    code: ReasonCode = ReasonCode.UNSUPPORTED_FORM


def all_declined(graph: Graph, why: str, code: ReasonCode) -> tuple[Declined, ...]:
    """Every operator, for one reason."""
    return tuple(Declined(n.label, n.op, tuple(n.origins), why, code) for n in graph)


def states_of(nodes: Sequence[Node]) -> tuple[Value, ...]:
    """The variables that nodes read and change, each once, in the order of the nodes."""
    found = {id(v): v for n in nodes for v in n.inputs if v is not None and v.is_variable}
    return tuple(found.values())


def over_limit(parts: Mapping[int, tuple[float, int]], limit: int) -> dict[int, str]:
    """Why parts stay on the CPU, by their numbers. ``parts`` has the gain of each and its bytes:
    those of the largest gain are taken as long as they fit beside each other in ``limit`` bytes."""
    left, reasons = limit, dict[int, str]()
    for number, (_, nbytes) in sorted(parts.items(), key=lambda part: (-part[1][0], part[0])):
        if nbytes <= left:
            left -= nbytes
        else:
            beside = "" if left == limit else f", of which other parts leave {left}"
            reasons[number] = (
                f"its part of the graph takes {nbytes} bytes on the device, and memory_limit is "
                f"{limit}{beside}{_LESS_MEMORY}"
            )
    return reasons


#: A plugin's rules by (owner, op, name), and what was wrong with each.
BrokenRules = Mapping[tuple[str, str, str], str]


@frozen(eq=False)
class Compiled:
    """A graph, compiled for a target. Values only: no device, and nothing that can be called.

    Attributes:
        graph: As it runs: quantized models in their float view, passes run.
        parts: In an order in which they can run.
        refusals: The nodes that stay on the CPU, with reasons.
        broken_rules: Plugins' rules that failed and were left out.
        integers: The file's operators that are computed on the numbers as they are stored.
        in_floats: With integer numerics, the quantized operators that are computed on real numbers
            nevertheless, with reasons.
        times: What estimates of time were made of.
        alone: Estimated seconds of the model wholly on the CPU, as the file has it.
        composites: What became of the file's composites.
    """

    graph: Graph
    parts: tuple[Part, ...]
    refusals: tuple[Declined, ...]
    broken_rules: BrokenRules = attrs.Factory(dict)
    integers: frozenset[int] = frozenset()
    in_floats: Mapping[int, str] = attrs.Factory(dict)
    times: TimeModel = ROUND_FIGURES
    alone: float | None = None
    composites: tuple[CompositeReport, ...] = ()

    @property
    def delegated(self) -> tuple[Part, ...]:
        """The parts that go to the device."""
        return tuple(part for part in self.parts if part.delegated)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, in order."""
        return tuple(part.plan for part in self.parts if part.plan is not None)

    def on_cpu(
        self, index: int, reason: str, code: ReasonCode = ReasonCode.DEVICE_FAILED
    ) -> Compiled:
        """A copy in which one part is on the CPU."""
        seconds = sum(cost.host for cost in self.parts[index].costs)
        part = attrs.evolve(
            self.parts[index], delegated=False, plan=None, gain=0.0, seconds=seconds
        )
        refusals = tuple(
            Declined(n.label, n.op, tuple(n.origins), reason, code) for n in part.nodes
        )
        parts = (*self.parts[:index], part, *self.parts[index + 1 :])
        return attrs.evolve(self, parts=parts, refusals=self.refusals + refusals)
