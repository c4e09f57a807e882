"""`Compiled`: parts of a graph, each with the plan that a device loads or with its nodes.

`tflgpu.compiler.compile` makes it, with the whole compiler; reading one from a file does without.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tflgpu.compiler.machines import ROUND_FIGURES, TimeModel
from tflgpu.compiler.parts import Declined, Part
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.report_values import CompositeReport
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode
from tflgpu.values import frozen

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
