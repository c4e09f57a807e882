"""Which nodes go to the device, in which parts, and why the others stay on the CPU.

The graph is cut into parts that run one after another, alternating between CPU and device.
Always taking every ready node of one side before changing sides gives the fewest changes there
can be, for each of the two sides to begin with; the better of the two is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from tflgpu.compiler.gain import given_up
from tflgpu.compiler.machines import ROUND_FIGURES, Cost, TimeModel
from tflgpu.compiler.parts import Declined, Part, states_of
from tflgpu.compiler.times import costs_of
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.values import frozen

#: None where a device can run a node, else the reason why not.
Supported = Callable[[Node], Unsupported | None]


@frozen(eq=False)
class _Timing:
    """Estimated seconds of nodes that run together."""

    model: TimeModel
    costs: Mapping[int, Cost]

    def seconds(self, costs: Sequence[Cost], edge: Sequence[Value], delegated: bool) -> float:
        side = self.model.device if delegated else self.model.host
        own = sum(cost.device if delegated else cost.host for cost in costs)
        return side.launch + side.edge * sum(v.nbytes for v in edge) + own


@frozen(eq=False)
class Partitioning:
    """All nodes of a graph in parts, in an order in which these can run."""

    parts: tuple[Part, ...]
    refusals: tuple[Declined, ...]

    @property
    def delegated(self) -> tuple[Part, ...]:
        """The parts that go to the device."""
        return tuple(p for p in self.parts if p.delegated)


def partition(
    graph: Graph,
    supported: Supported,
    ops: Mapping[str, OpDef],
    *,
    max_partitions: int | None = None,
    min_nodes: int = 1,
    times: TimeModel = ROUND_FIGURES,
    by_gain: bool = False,
    alone: float | None = None,
) -> Partitioning:
    """Divide a graph between CPU and device.

    Args:
        graph: The graph, in topological order.
        supported: None where the device can run a node, else the reason why not. Asked once a
            node.
        ops: Op definitions by name, for estimates.
        max_partitions: Most parts that go to the device, those with the largest gain; None = any
            number.
        min_nodes: A part of fewer nodes stays on the CPU.
        times: What estimates of time are made of.
        by_gain: Whether parts stay on the CPU that are estimated to be faster there.
        alone: Estimated seconds of the model wholly on the CPU, where the graph's are others.

    Returns:
        As few parts as the graph allows; no part waits for another that waits for it.
    """
    reasons: dict[int, Unsupported] = {}
    for node in graph.nodes:
        refused = supported(node)
        if refused is not None:
            reasons[id(node)] = refused
    costs = costs_of(graph, ops, times, {id(n) for n in graph} - reasons.keys())
    timing = _Timing(times, costs)

    def on_device(node: Node) -> bool:
        return id(node) not in reasons

    runs = _fewest_runs(graph, on_device)
    kept = [p for p in _parts(graph, runs, on_device, timing) if p.delegated]
    for part in kept:
        if len(part.nodes) < min_nodes:
            few = f"its part of the graph has {len(part.nodes)} nodes, fewer than {min_nodes}"
            reason = Unsupported(few, ReasonCode.MIN_NODES)
            reasons.update((id(n), reason) for n in part.nodes)
    kept = [p for p in kept if len(p.nodes) >= min_nodes]
    if max_partitions is not None:
        # A stable sort: of equals, the part that runs first.
        ranked = sorted(kept, key=lambda p: -p.gain)
        for place, part in enumerate(ranked[max_partitions:], max_partitions + 1):
            reason = Unsupported(
                f"its part of the graph is number {place} by estimated gain, and at most "
                f"{max_partitions} parts are delegated",
                ReasonCode.MAX_PARTITIONS,
            )
            reasons.update((id(n), reason) for n in part.nodes)
    order = [node for run in runs for node in run]
    if by_gain:
        slower = given_up(graph, _split(order, on_device), on_device, times, costs, alone)
        reasons.update((n, Unsupported(s, ReasonCode.NOT_WORTH_IT)) for n, s in slower.items())
    parts = _parts(graph, _split(order, on_device), on_device, timing)
    refusals = [
        Declined(n.label, n.op, n.origins, no.reason, no.code)
        for n in graph.nodes
        if (no := reasons.get(id(n))) is not None
    ]
    return Partitioning(parts, tuple(refusals))


def divide(part: Part, takes: Callable[[Node], bool]) -> list[tuple[Part, bool]]:
    """A part in as few pieces as there can be, each all of nodes that ``takes`` says yes or no to,
    which stands beside it. They run in this order."""
    graph = Graph("part", list(part.nodes), list(part.inputs), list(part.outputs))
    answers = {id(node): takes(node) for node in part.nodes}
    runs = _fewest_runs(graph, lambda node: answers[id(node)])
    pieces = _parts(graph, runs, lambda node: False, None)
    return [(piece, answers[id(piece.nodes[0])]) for piece in pieces]


def _fewest_runs(graph: Graph, on_device: Callable[[Node], bool]) -> list[list[Node]]:
    """All nodes, cut into runs of one side each, in an order in which they can run."""
    device_first, host_first = (_alternate(graph, on_device, start) for start in (True, False))

    def badness(runs: list[list[Node]]) -> tuple[int, int]:
        return sum(on_device(run[0]) for run in runs), len(runs)

    return min(device_first, host_first, key=badness)


def _alternate(graph: Graph, on_device: Callable[[Node], bool], start: bool) -> list[list[Node]]:
    """Runs that change sides only when no node of the side they are on is ready."""
    waits, followers = _dependencies(graph)
    # Indices of ready nodes for each side; popped smallest first, so that the file's order is
    # kept wherever it may be.
    ready: dict[bool, list[int]] = {True: [], False: []}
    for index, node in enumerate(graph.nodes):
        if not waits[index]:
            heapq.heappush(ready[on_device(node)], index)
    runs: list[list[Node]] = []
    side = start
    while ready[True] or ready[False]:
        run: list[Node] = []
        while ready[side]:
            index = heapq.heappop(ready[side])
            run.append(graph.nodes[index])
            for follower in followers[index]:
                waits[follower] -= 1
                if not waits[follower]:
                    heapq.heappush(ready[on_device(graph.nodes[follower])], follower)
        if run:
            runs.append(run)
        side = not side
    return runs


def _dependencies(graph: Graph) -> tuple[list[int], list[list[int]]]:
    """For each node, by index: how many nodes it waits for, and which ones wait for it."""
    makers: dict[int, int] = {}
    last_user: dict[int, int] = {}
    followers: list[set[int]] = [set() for _ in graph.nodes]
    for index, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value is None:
                continue
            if id(value) in makers:
                followers[makers[id(value)]].add(index)
            if value.is_variable:
                # A node may change its variables, so all users of one keep their order.
                if last_user.get(id(value), index) != index:
                    followers[last_user[id(value)]].add(index)
                last_user[id(value)] = index
        makers.update((id(v), index) for v in node.outputs)
    waits = [0] * len(graph.nodes)
    for group in followers:
        for follower in group:
            waits[follower] += 1
    return waits, [sorted(group) for group in followers]


def _split(order: Sequence[Node], on_device: Callable[[Node], bool]) -> list[list[Node]]:
    """An order cut wherever it changes sides."""
    return [list(run) for _, run in groupby(order, on_device)]


def _parts(
    graph: Graph,
    runs: Sequence[Sequence[Node]],
    on_device: Callable[[Node], bool],
    timing: _Timing | None,
) -> tuple[Part, ...]:
    where = {id(v): i for i, run in enumerate(runs) for n in run for v in n.outputs}
    leaving = {id(v) for v in graph.outputs}
    for i, run in enumerate(runs):
        leaving.update(id(v) for v in _reads(run) if where.get(id(v), i) != i)
    return tuple(
        _part(tuple(run), on_device(run[0]), i, where, leaving, timing)
        for i, run in enumerate(runs)
    )


def _part(
    nodes: tuple[Node, ...],
    delegated: bool,
    number: int,
    where: Mapping[int, int],
    leaving: Collection[int],
    timing: _Timing | None,
) -> Part:
    inputs = tuple(v for v in _reads(nodes) if where.get(id(v)) != number)
    outputs = tuple(v for n in nodes for v in n.outputs if id(v) in leaving)
    if timing is None:
        return Part(nodes, delegated, inputs, outputs)
    costs = tuple(timing.costs[id(node)] for node in nodes)
    # A device gets the state of the run before, and hands out the new one.
    states = states_of(nodes) if delegated else ()
    seconds = timing.seconds(costs, (*inputs, *outputs, *states, *states), delegated)
    gain = sum(cost.host for cost in costs) - seconds if delegated else 0.0
    return Part(nodes, delegated, inputs, outputs, gain, seconds, costs)


def _reads(nodes: Sequence[Node]) -> list[Value]:
    """The values that nodes read, each once, without constants and variables."""
    read = {
        id(v): v
        for node in nodes
        for v in node.inputs
        if v is not None and not v.is_const and not v.is_variable
    }
    return list(read.values())
