"""The result of partitioning: parts of a graph, and the reasons of operators that stay on the CPU,
for want of memory too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from tflgpu.compiler.machines import Cost
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.reason import ReasonCode
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.compiler.plan import Plan

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
