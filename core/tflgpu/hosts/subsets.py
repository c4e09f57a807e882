"""Which of LiteRT's nodes the delegate takes: those that the device supports and whose subset
loads.

LiteRT cuts the chosen nodes into subsets that can each run at once. Each subset is compiled and
loaded before LiteRT is told to replace anything, and what turns out not to run stays with LiteRT.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from tflgpu.compiler.compile import declined
from tflgpu.compiler.gain import slower
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.compiler.parts import Declined, all_declined, over_limit
from tflgpu.errors import StateError, TflgpuError
from tflgpu.errors.blame import LOG
from tflgpu.hosts.callbacks import Nodes, Preview
from tflgpu.hosts.reading import TAKEN, HostGraph
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import UnknownOp
from tflgpu.runtime.loading import Opened
from tflgpu.runtime.opening import open_whole, warn_of_names
from tflgpu.runtime.provider import Provider
from tflgpu.tflite.bodies import RUN_BY_HOST
from tflgpu.tflite.build import build_subgraph
from tflgpu.tflite.inline import NAME as COMPOSITE
from tflgpu.tflite.model_file import SubgraphInfo


@attrs.frozen(eq=False)
class Subset:
    """Nodes that LiteRT will run as one, and the session that does.

    Attributes:
        nodes: LiteRT's indices, in order of execution.
        outputs: Tensors that others read.
        info: The nodes as a graph, with what makes their weights of constants.
        opened: The session.
    """

    nodes: Nodes
    outputs: tuple[int, ...]
    info: SubgraphInfo
    opened: Opened


@attrs.frozen(eq=False)
class Decision:
    """The subsets to replace, and why other nodes stay. What is in neither is worked out of
    constants by LiteRT once, and by each subset that reads it when that is opened."""

    subsets: tuple[Subset, ...]
    refused: Mapping[int, Unsupported]


def decide(host: HostGraph, provider: Provider, preview: Preview) -> Decision:
    """Choose nodes and open their sessions.

    Raises:
        TflgpuError: a device or plugin failed, and ``allow_fallback`` is off.
    """
    refused = {n: Unsupported(why, ReasonCode.HOST) for n, why in host.unreadable.items()}
    graph = _understood(host, provider.ops, refused)
    if graph is None:
        return Decision((), refused)
    for no in _declined(graph, provider):
        refused.update(dict.fromkeys(no.origins, Unsupported(no.reason, no.code)))
    opened: dict[tuple[Nodes, tuple[int, ...]], Subset] = {}
    try:
        while True:
            free = _of_constants(host, provider.ops, refused)
            nodes = tuple(n for n in host.operators if n not in refused and n not in free)
            if len(nodes) + len(free) == len(host.operators):
                nodes = tuple(host.operators)  # nobody in LiteRT needs what these make
            cut = list(preview(nodes)) if nodes else []
            failed: dict[int, Unsupported] = {}
            for key in cut:
                if key not in opened:
                    info = host.subgraph(*key, beside=free)
                    found = open_subset(info, provider)
                    if isinstance(found, dict):
                        failed.update(_blamed(found, key[0], free))
                    else:
                        opened[key] = Subset(*key, info, found)
            if not failed:
                failed = _over_limits([opened[key] for key in cut], provider)
            if not failed:
                break
            refused.update(failed)
        kept = tuple(opened.pop(key) for key in cut)
    finally:
        for left in opened.values():
            left.opened.session.close()
    return Decision(kept, refused)


def _declined(graph: Graph, provider: Provider) -> Sequence[Declined]:
    """The operators that the device refuses, as far as that shows before kernels are made."""
    opened = provider.usable()
    if opened.device is None:
        return all_declined(graph, opened.why_none, ReasonCode.NO_DEVICE)
    warn_of_names(graph, opened)
    return declined(graph, opened.target())


def _blamed(
    found: Mapping[int, Unsupported], nodes: Nodes, free: Collection[int]
) -> dict[int, Unsupported]:
    """Whom to leave to LiteRT for what was found: never a node that only works out constants, since
    that is not what keeps a subset from the device."""
    blamed = {node: why for node, why in found.items() if node not in free}
    return blamed or {n: next(iter(found.values())) for n in nodes if n not in free or n in found}


def open_subset(
    info: SubgraphInfo, provider: Provider, shapes: Mapping[int, tuple[int, ...]] | None = None
) -> Opened | dict[int, Unsupported]:
    """A session for a subgraph, at other ``shapes`` of its inputs if given; or why some operators
    cannot be in it.

    Raises:
        TflgpuError: as `decide`.
    """
    try:
        graph = build_subgraph(info, provider.ops, shapes, warn=LOG.debug)
        unknown = _unknown(graph)
        if unknown:
            return {node: Unsupported(reason) for node, (reason, _) in unknown.items()}
        found = open_whole(graph, provider)
    except StateError:
        raise  # the delegate was closed: nobody wants its nodes to run elsewhere
    except TflgpuError as error:
        if not provider.options.allow_fallback:
            raise
        LOG.warning("tflgpu: %d operators stay with LiteRT: %s", len(info.operators), str(error))
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        why = Unsupported(reason, ReasonCode.DEVICE_FAILED)
        return {operator.index: why for operator in info.operators}
    if isinstance(found, Opened):
        return found
    reasons = {o: Unsupported(d.reason, d.code) for d in found for o in d.origins}
    # What a pass of a plugin made may stand for no operator; then none of these can go.
    return reasons or {
        o.index: Unsupported(d.reason, d.code) for d in found for o in info.operators
    }


def _understood(
    host: HostGraph, ops: Mapping[str, OpDef], refused: dict[int, Unsupported]
) -> Graph | None:
    """The graph of all nodes that mean something here; what does not goes into ``refused``.

    What a node makes that stays with LiteRT is an input of the others, in the shape that LiteRT has
    for it. Where only the numbers tell that shape, what reads it stays too.
    """
    _refuse_unknown(host, ops, refused)
    dynamic: set[int] = set()
    while True:
        _refuse_open(host, refused, dynamic)
        nodes = tuple(n for n in host.operators if n not in refused)
        if not nodes:
            return None
        try:
            graph = build_subgraph(host.subgraph(nodes), ops, warn=LOG.debug)
        except TflgpuError as error:
            node, reason = _first_wrong(host, ops, nodes, error)
            refused[node] = Unsupported(reason)
            continue
        unknown = _unknown(graph)
        if not unknown:
            return graph
        refused.update((node, Unsupported(reason)) for node, (reason, _) in unknown.items())
        dynamic.update(node for node, (_, open_shape) in unknown.items() if open_shape)


def _unknown(graph: Graph) -> dict[int, tuple[str, bool]]:
    """Why operators of a graph cannot be computed, and whether only for want of a shape or a
    number; of those that depend on each other, the first."""
    return {
        origin: (node.attrs.reason, node.attrs.dynamic)
        for node in graph
        if isinstance(node.attrs, UnknownOp)
        and all(v is None or v.shape_known for v in node.inputs)
        for origin in node.origins
    }


def _refuse_unknown(
    host: HostGraph, ops: Mapping[str, OpDef], refused: dict[int, Unsupported]
) -> None:
    """What can be told of a node by itself."""
    for index, operator in host.operators.items():
        definition = ops.get(operator.name)
        if refused.get(index) == Unsupported(TAKEN) or (
            index in refused and definition is not None
        ):
            continue
        if definition is None:  # says more than that its options are not read
            kind = "custom op" if operator.is_custom else "op"
            why = f"{kind} {operator.name} is not defined; a plugin can define it"
            if operator.name in RUN_BY_HOST and not operator.is_custom:
                why = "control flow and variables are the interpreter's own"
            if operator.name == COMPOSITE and not operator.is_custom:
                why = (
                    "LiteRT runs what a composite is made of as a graph of its own, which the "
                    "device is given by itself"
                )
            refused[index] = Unsupported(why, ReasonCode.UNSUPPORTED_OP)
        elif operator.version > definition.file.max_version:
            refused[index] = Unsupported(
                f"version {operator.version} of {operator.name} is newer than "
                f"{definition.file.max_version}, the newest understood"
            )
        elif not all(_has_arrays(host, t) for t in (*operator.inputs, *operator.outputs)):
            refused[index] = Unsupported(
                "it reads or makes a tensor of a type that is not supported"
            )


def _has_arrays(host: HostGraph, tensor: int) -> bool:
    return (
        tensor < 0
        or host.tensors[tensor].dtype.has_numpy
        or (bool(host.tensors[tensor].dtype.packed) and host.tensors[tensor].is_constant)
    )


def _refuse_open(
    host: HostGraph, refused: dict[int, Unsupported], dynamic: Collection[int]
) -> None:
    """Refuse what reads, directly or not, a tensor whose shape depends on numbers: what a node of
    ``dynamic`` makes, or a node that stays with LiteRT and makes an open shape of fixed ones.

    An open shape that comes from the model's inputs is no reason: it is known when these are.
    """
    makers: dict[int, int] = {}  # of tensors in such shapes
    for index, operator in host.operators.items():  # in order of execution
        found = [t for t in operator.inputs if t in makers]
        if found and index not in refused:
            refused[index] = Unsupported(
                f"the shape of tensor {found[0]}, which node {makers[found[0]]} makes, is not "
                "known before the model runs"
            )
        opens = not any(t in host.open_shapes for t in operator.inputs)
        makers.update(
            (t, index)
            for t in operator.outputs
            if found or index in dynamic or (index in refused and opens and t in host.open_shapes)
        )


def _first_wrong(
    host: HostGraph, ops: Mapping[str, OpDef], nodes: Nodes, error: TflgpuError
) -> tuple[int, str]:
    """The first node that the others cannot be built with, and why: nodes are added in order, so
    that half of them tell in which half it is."""
    low, high = 0, len(nodes)  # the first `low` can be built, the first `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            build_subgraph(host.subgraph(nodes[:middle]), ops, warn=LOG.debug)
        except TflgpuError as found:
            high, error = middle, found
        else:
            low = middle
    return nodes[high - 1], str(error)


def _of_constants(
    host: HostGraph, ops: Mapping[str, OpDef], refused: Mapping[int, Unsupported]
) -> tuple[int, ...]:
    """Operators whose operands are all constants: DEQUANTIZE of 16-bit weights, above all.

    They are in no subset, as long as anything stays with LiteRT: it would put them into the first,
    which would then hand the weights to all others in every run. LiteRT works them out once, and a
    subset that reads what they make has them too and folds them when it is opened. So does TFLite's
    own GPU delegate.
    """
    return tuple(
        index
        for index, operator in host.operators.items()
        if index not in refused
        and operator.inputs
        and all(t < 0 or host.tensors[t].is_constant for t in operator.inputs)
        and (definition := ops.get(operator.name)) is not None
        and definition.state is None
    )


def _over_limits(subsets: Sequence[Subset], provider: Provider) -> dict[int, Unsupported]:
    """What does not pay, and what the options' limits on parts give back, with the sentences of
    `tflgpu.compiler.gain` and `tflgpu.compiler.partition`."""
    reasons: dict[int, Unsupported] = {}
    options = provider.options
    by_gain = provider.opened is not None and provider.opened.partitioning[0] is PartitionBy.GAIN
    least, most = options.min_nodes_per_partition, options.max_delegated_partitions
    kept = []
    for subset in subsets:
        opened = subset.opened
        if len(subset.nodes) < least:
            few = f"its part of the graph has {len(subset.nodes)} nodes, fewer than {least}"
            reason = Unsupported(few, ReasonCode.MIN_NODES)
        elif by_gain and opened.gain < 0:
            cpu = opened.seconds + opened.gain
            why = slower(len(subset.nodes), opened.seconds, cpu)
            reason = Unsupported(why, ReasonCode.NOT_WORTH_IT)
        else:
            kept.append(subset)
            continue
        reasons.update(dict.fromkeys(subset.nodes, reason))
    if most is not None and not reasons:
        ranked = sorted(kept, key=lambda s: -s.opened.gain)
        for place, subset in enumerate(ranked[most:], most + 1):
            reason = Unsupported(
                f"its part of the graph is number {place} by estimated gain, and at most "
                f"{most} parts are delegated",
                ReasonCode.MAX_PARTITIONS,
            )
            reasons.update(dict.fromkeys(subset.nodes, reason))
    if options.memory_limit is not None and not reasons:
        sizes = {i: (s.opened.gain, s.opened.nbytes) for i, s in enumerate(kept)}
        for at, why in over_limit(sizes, options.memory_limit).items():
            reason = Unsupported(why, ReasonCode.DEVICE_LIMIT)
            reasons.update(dict.fromkeys(kept[at].nodes, reason))
    return reasons
