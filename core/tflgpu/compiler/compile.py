"""`compile`: a graph becomes parts, each with the plan that a device loads or its nodes.

graph -> float view -> composites -> attention -> passes -> partition -> (per part) rules -> plan
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import attrs
import numpy as np

from tflgpu.compiler.build import OverLimit, RuleError
from tflgpu.compiler.composites import CompositeNodes, Kept, stranded, take_composites
from tflgpu.compiler.lower import LoweringInput, halved_values, lower
from tflgpu.compiler.narrow import narrow_indices
from tflgpu.compiler.partition import Partitioning, partition
from tflgpu.compiler.parts import Compiled, Declined, Part, over_limit, states_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.compiler.times import alone
from tflgpu.ir.absent import AbsentPositions
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.weights import INFINITE_F16
from tflgpu.ops.moves import Moves
from tflgpu.passes import find_attention
from tflgpu.passes.base import run_passes
from tflgpu.passes.find_attention import Key
from tflgpu.passes.float_view import FloatView, float_view


def compile(graph: Graph, target: Target) -> Compiled:
    """Compile a graph, which is not changed.

    Some limits show only in a finished kernel. A node that is over one goes to the CPU, and the
    parts are made anew without it; so where a plugin's rule fails, if the target spares it.

    Raises:
        PluginError: a plugin's graph pass, op or kernel rule broke its contract.
        GraphError: a pass left a broken graph.
    """
    as_operators: dict[tuple[int, ...], str] = {}
    apart: set[Key] = set()
    while True:
        compiled, taken, found = _compiled(graph, target, as_operators, apart)
        divided = [(part.delegated, part.nodes) for part in compiled.parts]
        left = stranded(taken, divided) if taken.outputs else {}
        on_cpu = [node for part in compiled.parts if not part.delegated for node in part.nodes]
        left_too = find_attention.among(on_cpu, found)
        if not left and not left_too:
            return compiled
        as_operators.update(left)
        apart |= left_too


def _with_composites(
    graph: Graph, target: Target, kept_off: Mapping[int, str], as_operators: Kept
) -> CompositeNodes:
    """One node for each composite that the device computes as one."""
    if not target.fuse or not any(node.source and node.source.composites for node in graph):
        return CompositeNodes()
    return take_composites(graph, target, kept_off, as_operators)


def _with_attention(
    graph: Graph, target: Target, kept_off: Mapping[int, str], apart: Collection[Key]
) -> frozenset[Key]:
    """One node for what is attention, where the device takes it and has kernels."""
    if not target.fuse or target.rules is None:
        return frozenset()

    def takes(node: Node) -> bool:
        return kept_off.keys().isdisjoint(node.origins) and target.refusal(node) is None

    return find_attention.run(graph, target.pass_context, takes, apart)


def _scaled_beyond_f16(graph: Graph, target: Target) -> frozenset[int]:
    """The file's operators that multiply by a number that is infinite in f16. Masks of exported
    transformers are made so: 0 or 1 times the least f32, of which f16 would make NaN and infinity.
    """
    beyond: set[int] = set()
    for node in graph.nodes:
        affine = target.pass_context.affine_of(node)
        sizes = np.zeros(0) if affine is None else np.abs(affine.scale)
        if ((sizes >= INFINITE_F16) & np.isfinite(sizes)).any():
            beyond.update(node.origins)
    return frozenset(beyond)


def _compiled(
    graph: Graph, target: Target, as_operators: Kept, apart: Collection[Key]
) -> tuple[Compiled, CompositeNodes, frozenset[Key]]:
    """`compile`, with the composites as operators of which it is known that they have to be, and
    with attention as operators in ``apart``."""
    wanted = target.in_integers if target.wants_integers else None
    view = float_view(graph, target.ops, in_integers=wanted, rounds_hybrid=target.rounds_hybrid)
    target = attrs.evolve(target, in_f32=target.in_f32 | view.exact) if view.exact else target
    kept_off = {} if target.choice is None else target.choice.refusals(graph)
    taken = _with_composites(view.graph, target, kept_off, as_operators)
    found_there = _with_attention(view.graph, target, kept_off, apart)
    run_passes(view.graph, target.passes, target.pass_context)
    # A device that runs nodes runs them as they are.
    if target.rules is not None and any(v.dtype is DType.I64 for v in view.graph.values.values()):
        narrow_indices(view.graph, target)
    if target.site.precision is Precision.F16:
        target = attrs.evolve(target, in_f32=target.in_f32 | _scaled_beyond_f16(view.graph, target))
    # Where everything stays on the CPU, the model runs as the file has it.
    whole = alone(graph, target.ops, target.times)
    over: dict[int, str] = {}
    broken: dict[tuple[str, str, str], str] = {}
    usable = target
    while True:
        try:
            found = _divided(view, usable, over, kept_off, whole)
            parts = tuple(_part(part, usable, view.graph) for part in found.parts)
        except OverLimit as error:
            over[id(error.node)] = str(error)
        except RuleError as error:
            if error.rules <= broken.keys() or not target.spares_broken_rules:
                raise
            broken.update(dict.fromkeys(error.rules, str(error)))
            usable = target.without(broken)
        else:
            compiled = Compiled(
                view.graph,
                parts,
                found.refusals,
                broken,
                view.integers,
                view.in_floats,
                target.times,
                whole,
                taken.reports,
            )
            if target.memory_limit is not None:
                sizes = {
                    index: (part.gain, part.plan.device_bytes)
                    for index, part in enumerate(parts)
                    if part.plan is not None
                }
                for index, reason in over_limit(sizes, target.memory_limit).items():
                    compiled = compiled.on_cpu(index, reason, ReasonCode.DEVICE_LIMIT)
            return compiled, taken, found_there


def declined(graph: Graph, target: Target) -> tuple[Declined, ...]:
    """The operators that a target refuses, as far as that shows before kernels are made. The graph
    is not changed.

    Raises:
        PluginError, GraphError: as `compile`.
    """
    view = float_view(graph, target.ops, rounds_hybrid=target.rounds_hybrid)
    kept_off = {} if target.choice is None else target.choice.refusals(graph)
    _with_composites(view.graph, target, kept_off, {})
    _with_attention(view.graph, target, kept_off, ())
    run_passes(view.graph, target.passes, target.pass_context)
    whole = alone(graph, target.ops, target.times)
    return _divided(view, target.without_limits(), {}, kept_off, whole).refusals


def plan_of(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    target: Target,
    absent: AbsentPositions | None = None,
) -> Plan:
    """The plan of nodes, in topological order, that run together on the device. Their variables
    follow the inputs, and these variables' new contents the outputs. One of the inputs says how
    many of the positions ``absent`` there are.

    Raises:
        OverLimit: a node's kernel is over a limit of the device.
        KernelError: a generator broke a rule of the language.
    """
    request = attrs.evolve(_request(nodes, inputs, outputs, target), absent=absent)
    return lower(request, target.alignment)


def halved_in(part: Part, target: Target) -> frozenset[int]:
    """The ids of a part's f32 tensors that lie between two of its kernels in 16 bits.

    Raises:
        OverLimit, KernelError: as `plan_of`.
    """
    if target.rules is None:
        return frozenset()
    return halved_values(_request(part.nodes, part.inputs, part.outputs, target))


def _request(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], target: Target
) -> LoweringInput:
    rules: dict[int, KernelRule] = {}
    for node in nodes:
        rule = target.rule(node)
        if isinstance(rule, Unsupported):  # a plugin's rule has changed its mind
            raise OverLimit(node, rule.reason)
        rules[id(node)] = rule
    views = frozenset(id(n) for n in nodes if target.ops[n.op].movement.is_view)
    return LoweringInput(
        nodes,
        inputs,
        outputs,
        rules,
        target.elementwise,
        views,
        target.site,
        target.fuse,
        target.kernels.groups,
        target.saves_memory,
        target.site_of,
        _own_states(nodes),
        lambda node: _moves(node, target, rules),
        lambda node: target.ops[node.op].movement.keeps_values,
        begin=target.begin,
    )


def _moves(node: Node, target: Target, rules: Mapping[int, KernelRule]) -> Moves | None:
    """How a node moves elements; None where it computes, or a plugin's kernel moves them."""
    moves = target.ops[node.op].movement.moves
    if moves is None or rules[id(node)].owner or not target.pass_context.is_linear(node):
        return None
    return moves(node)


def _shared_states(graph: Graph) -> frozenset[int]:
    """The variables, by identity, that more than one node has."""
    found = Counter(id(v) for node in graph for v in states_of([node]))
    return frozenset(key for key, count in found.items() if count > 1)


def _own_states(nodes: Sequence[Node]) -> tuple[Value, ...]:
    """The variables of nodes. Each must be one node's: a second one would have to see what the
    first made of it."""
    owners: dict[int, Node] = {}
    for node in nodes:
        for value in states_of([node]):
            other = owners.setdefault(id(value), node)
            if other is not node:
                raise OverLimit(
                    node,
                    f"{node.label}: its variable {value.name} is that of {other.label} too, which "
                    "runs in the same part",
                )
    return states_of(nodes)


def _divided(
    view: FloatView,
    target: Target,
    over: Mapping[int, str],
    kept_off: Mapping[int, str],
    whole: float,
) -> Partitioning:
    shared = _shared_states(view.graph)

    def supported(node: Node) -> Unsupported | None:
        for origin in node.origins:
            if origin in kept_off:
                return Unsupported(kept_off[origin], ReasonCode.EXCLUDED)
        if id(node) in over:
            return Unsupported(over[id(node)], ReasonCode.DEVICE_LIMIT)
        if not target.quantized_allowed and view.origins.intersection(node.origins):
            return Unsupported(
                "it is quantized, and quantized_models_allowed is off", ReasonCode.QUANTIZED_OFF
            )
        for value in states_of([node]):
            if id(value) in shared:
                return Unsupported(
                    f"its state {value.name} is that of several operators, each of which has to "
                    "see what the one before it made of it; a device's counts when all of a run "
                    "is over"
                )
        return target.refusal(node)

    return partition(
        view.graph,
        supported,
        target.ops,
        max_partitions=target.max_partitions,
        min_nodes=target.min_nodes,
        times=target.times,
        by_gain=target.by_gain,
        alone=whole,
    )


def _part(part: Part, target: Target, graph: Graph) -> Part:
    if not part.delegated or target.rules is None:
        return part
    if graph.absent is not None:
        part = attrs.evolve(part, inputs=(*part.inputs, graph.values[graph.absent.count]))
    plan = plan_of(part.nodes, part.inputs, part.outputs, target, graph.absent)
    return attrs.evolve(part, plan=plan)
