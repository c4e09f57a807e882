"""Parts of a graph that would take longer on the device than on the CPU.

Giving up a part does not only move its nodes: the parts of the CPU around it become one, and what
went to the device and back stays where it is. So whole divisions are compared: all that the device
can run; that without the parts that cost most, given up one by one as long as each saves time; and
nothing at all. The one with the least estimated time is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tflgpu.compiler.machines import Cost, Machine, TimeModel
from tflgpu.compiler.times import edges_of, readers_of, told
from tflgpu.ir.graph import Graph, Node
from tflgpu.values import define, frozen


@define(eq=False)
class _Run:
    nodes: list[Node]
    delegated: bool
    seconds: float


@frozen(eq=False)
class _Clock:
    """Tells how long nodes take that run together."""

    model: TimeModel
    costs: Mapping[int, Cost]
    readers: Mapping[int, set[int]]
    leaving: frozenset[int]

    def run(self, nodes: Sequence[Node], delegated: bool) -> _Run:
        side: Machine = self.model.device if delegated else self.model.host
        own = sum(self._of(node, delegated) for node in nodes)
        edges = edges_of(nodes, self.readers, self.leaving)
        return _Run(list(nodes), delegated, side.launch + side.edge * edges + own)

    def on_cpu(self, nodes: Sequence[Node]) -> float:
        return sum(self._of(node, delegated=False) for node in nodes)

    def _of(self, node: Node, delegated: bool) -> float:
        cost = self.costs[id(node)]
        return cost.device if delegated else cost.host


def given_up(
    graph: Graph,
    runs: Sequence[Sequence[Node]],
    on_device: Callable[[Node], bool],
    model: TimeModel,
    costs: Mapping[int, Cost],
    alone: float | None = None,
) -> dict[int, str]:
    """The nodes that the device can run and that stay on the CPU because it is faster.

    Args:
        graph: The graph.
        runs: All of its nodes in runs of one side each, in order.
        on_device: Which side that is.
        model: What time is estimated by.
        costs: As `tflgpu.compiler.times.costs_of`.
        alone: Estimated seconds of the whole model on the CPU, where that is not the graph's: a
            quantized one runs there as the file has it.

    Returns:
        By ``id(node)``, the sentence that says why, with both times.
    """
    leaving = frozenset(id(value) for value in graph.outputs)
    clock = _Clock(model, costs, readers_of(graph), leaving)
    line = _merged(clock, [clock.run(run, on_device(run[0])) for run in runs])
    reasons: dict[int, str] = {}
    while True:
        losses = [(_loss(clock, line, at), at) for at, run in enumerate(line) if run.delegated]
        if len(losses) == 1 and alone is not None:
            break  # without it the model runs as the file has it, which is compared below
        worst = max(losses, key=lambda found: found[0], default=(0.0, 0))
        if worst[0] <= 0:
            break
        loss, at = worst
        part = line[at]
        cpu = clock.on_cpu(part.nodes)
        sentence = slower(len(part.nodes), cpu + loss, cpu)
        reasons.update((id(node), sentence) for node in part.nodes)
        line[at] = clock.run(part.nodes, delegated=False)
        line = _merged(clock, line)
    rest = [run for run in line if run.delegated]
    divided = sum(run.seconds for run in line)
    whole = clock.run(graph.nodes, delegated=False).seconds if alone is None else alone
    if rest and whole < divided:
        sentence = (
            f"the model: {told(divided)} with {_nodes(sum(len(r.nodes) for r in rest))} on the "
            f"device, {told(whole)} wholly on the CPU (estimates)"
        )
        reasons.update((id(node), sentence) for run in rest for node in run.nodes)
    return reasons


def slower(count: int, device: float, cpu: float) -> str:
    """Why a part of ``count`` nodes stays on the CPU: its estimated seconds on both sides."""
    return (
        f"part of {_nodes(count)}: {told(device)} on the device, {told(cpu)} on the CPU (estimates)"
    )


def _loss(clock: _Clock, line: Sequence[_Run], at: int) -> float:
    """Seconds that the part at a place costs more than its nodes on the CPU would."""
    # No two neighbours are of one side, so what stands beside a delegated part is the CPU's.
    around = line[max(0, at - 1) : at + 2]
    together = clock.run([n for run in around for n in run.nodes], delegated=False)
    return sum(run.seconds for run in around) - together.seconds


def _merged(clock: _Clock, line: Sequence[_Run]) -> list[_Run]:
    """The parts with neighbours of one side joined."""
    found: list[_Run] = []
    for run in line:
        if found and found[-1].delegated == run.delegated:
            found[-1] = clock.run([*found[-1].nodes, *run.nodes], run.delegated)
        else:
            found.append(run)
    return found


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
