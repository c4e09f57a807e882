"""Replaces the operators of a composite by one node of an op that computes them together.

The reader writes composites out (`tflgpu.tflite.inline`). Where an op says that it knows a
composite's name (`FileForm.composed`), understands its attributes and operands, and the device
takes the op, one node replaces what the composite is made of. What the operators compute is the
definition, as in LiteRT; a name is a hint. Some converters put into a composite what its attributes
do not tell (a causal mask, a scale behind a norm), so a reading counts only if it gives the results
of the operators on drawn numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflgpu.compiler.report_values import CompositeReport
from tflgpu.compiler.target import Target
from tflgpu.compiler.trial import Trial
from tflgpu.errors.blame import Failed, attempt, listed, quoted
from tflgpu.ir.graph import Composite, Graph, Node, Value
from tflgpu.ir.rewrite import merged_origins
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Composed, Fields, OpDef, Operand, Reading, known_operands
from tflgpu.ops.flexible import read_map
from tflgpu.values import frozen

#: Composites that are to run as operators, by the tensors that they give, with reasons.
Kept = Mapping[tuple[int, ...], str]


@frozen(eq=False)
class CompositeNodes:
    """The composites of a graph: a report of each, and the results of those that one node computes
    now."""

    reports: tuple[CompositeReport, ...] = ()
    outputs: frozenset[tuple[int, ...]] = frozenset()


def take_composites(
    graph: Graph,
    target: Target,
    kept_off: Mapping[int, str],
    kept: Kept,
) -> CompositeNodes:
    """Put one node in the place of each composite that an op of the target computes as one. The
    graph is changed.

    ``kept_off`` are operators that are not to go to the device, ``kept`` composites that are to run
    as operators, both with reasons.

    Raises:
        GraphError: it was none before.
    """
    work = _Taking(graph, target)
    reports: list[CompositeReport] = []
    outputs: set[tuple[int, ...]] = set()
    for composite, members in _composites(graph).items():
        if any(id(node) in work.gone for node in members):
            continue  # it is part of one that was taken
        origins = merged_origins(*members)
        reason: OpDef | str = next(
            (kept_off[o] for o in origins if o in kept_off), kept.get(composite.outputs, "")
        )
        if not reason:
            reason = work.take(composite)
        if isinstance(reason, OpDef):
            outputs.add(composite.outputs)
            reports.append(CompositeReport(composite.name, origins, reason.name, ""))
        else:
            reports.append(CompositeReport(composite.name, origins, "", reason))
    if outputs:
        graph.prune()
        verify(graph, "take_composites")
    return CompositeNodes(tuple(reports), frozenset(outputs))


def _composites(graph: Graph) -> dict[Composite, list[Node]]:
    """The operators of each that are in the graph; outer composites before those inside them."""
    found: dict[Composite, list[Node]] = {}
    depths: dict[Composite, int] = {}
    for node in graph:
        for depth, composite in enumerate(node.source.composites if node.source else ()):
            found.setdefault(composite, []).append(node)
            depths[composite] = depth
    return dict(sorted(found.items(), key=lambda item: depths[item[0]]))


@frozen(eq=False)
class _Place:
    """A composite in the graph: its operands, its results, and the nodes between."""

    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        return tuple(known_operands(self.inputs))


class _Taking:
    """At work on a graph."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph, self._target = graph, target
        self._makers = {id(v): node for node in graph for v in node.outputs}
        self._readers: dict[int, list[Node]] = {}
        for node in graph:
            for value in node.inputs:
                self._readers.setdefault(id(value), []).append(node)
        self._trial = Trial(target.ops)
        self.gone: set[int] = set()

    def take(self, composite: Composite) -> OpDef | str:
        """The op that stands for a composite now, or why none does."""
        claims = [
            (op, composed)
            for op in self._target.ops.values()
            for composed in op.file.composed
            if composite.name in composed.names
        ]
        if not claims:
            return (
                f"no op is known that computes {quoted(composite.name)} as one; a plugin can "
                "define it"
            )
        place = self._place(composite)
        if isinstance(place, str):
            return place
        reasons = []
        # A plugin's before a shipped one.
        for op, composed in sorted(claims, key=lambda claim: not claim[0].owner):
            found = self._node(op, composed, composite, place)
            if isinstance(found, Node):
                self._put(found, place)
                return op
            who = f"{op.name} of plugin {op.owner}" if op.owner else op.name
            reasons.append(f"{who}: {found}")
        return "; ".join(reasons)

    def _place(self, composite: Composite) -> _Place | str:
        """Where a composite is, found backwards from its results; or why it is not there as a
        whole."""
        values = self._graph.values
        inputs = tuple(values.get(i) for i in composite.inputs)  # None: absent, or without a reader
        outputs = [values.get(i) for i in composite.outputs]
        needed = {id(v) for v in outputs if v is not None}
        given = {id(v) for v in inputs if v is not None}
        nodes: list[Node] = []
        for node in reversed(self._graph.nodes):
            if not any(id(v) in needed for v in node.outputs):
                continue
            if node.source is None or composite not in node.source.composites:
                return f"{node.label}, which is no part of it, makes one of its tensors"
            nodes.append(node)
            needed.update(id(v) for v in node.inputs if v is not None and id(v) not in given)
        for node in nodes:
            for value in node.inputs:
                if value is None or value.is_const or id(value) in given:
                    continue
                if value.is_variable or id(value) not in self._makers:
                    return f"{node.label} reads {quoted(value.name)}, which is none of its operands"
            for value in node.outputs:
                elsewhere = any(reader not in nodes for reader in self._readers.get(id(value), ()))
                if not any(value is v for v in outputs) and (
                    elsewhere or self._graph.is_output(value)
                ):
                    return f"{quoted(value.name)}, which is inside it, is needed elsewhere"
        for value in (*inputs, *outputs):
            if value is not None and (not value.shape_known or value.is_variable):
                return f"{quoted(value.name)} is a variable, or its shape is not known"
        if any(v is None or id(v) not in self._makers for v in outputs):
            return "one of its results is not computed, or not used"
        return _Place(inputs, tuple(v for v in outputs if v is not None), tuple(nodes[::-1]))

    def _node(
        self, op: OpDef, composed: Composed, composite: Composite, place: _Place
    ) -> Node | str:
        """A node of an op for the composite; or why it cannot take its place."""
        if composite.version > composed.max_version:
            return f"version {composite.version} is newer than {composed.max_version}"
        if any(node.op == op.name for node in place.nodes) and len(place.nodes) == 1:
            return "it is one operator of this kind already"
        fields = attempt(_fields, op, composite)
        if isinstance(fields, Failed):
            return str(fields.error)
        unknown = sorted(map(str, set(fields.values) - composed.attributes))
        if unknown:
            return f"its attribute {', '.join(map(quoted, unknown))} is not understood"
        readings = attempt(lambda: tuple(composed.read(fields, place.operands)))
        if isinstance(readings, Failed):
            return str(readings.error)
        reason = ""  # of the likeliest reading
        for reading in readings:
            found = attempt(self._tried, op, composed, reading, place)
            if isinstance(found, Node):
                return found
            reason = reason or (str(found.error) if isinstance(found, Failed) else found)
        return reason or "it cannot be read"

    def _tried(self, op: OpDef, composed: Composed, reading: Reading, place: _Place) -> Node | str:
        """The node of one reading, which gives what the operators give; or why not."""
        chosen = range(len(place.inputs)) if reading.operands is None else reading.operands
        inputs = [place.inputs[i] for i in chosen]
        given = [place.operands[i] for i in chosen]
        made, wanted = op.infer(reading.attributes, given), [v.spec for v in place.outputs]
        if list(made) != wanted:
            return (
                f"it gives {listed(map(str, made))}, and the operators {listed(map(str, wanted))}"
            )
        node = Node(
            op.name,
            reading.attributes,
            inputs,
            list(place.outputs),
            1,
            merged_origins(*place.nodes),
        )
        refused = self._target.refusal(node)
        if refused is not None:
            return refused.reason
        return self._trial.refused(op, composed, node, place.inputs, place.nodes) or node

    def _put(self, node: Node, place: _Place) -> None:
        """Put a node in the place of a composite's. `prune` then removes nodes whose results have
        no reader left."""
        nodes = self._graph.nodes
        self.gone |= {id(n) for n in place.nodes}
        nodes[nodes.index(place.nodes[0])] = node
        outputs = {id(v) for v in place.outputs}
        for old in place.nodes:
            if any(id(v) in outputs for v in old.outputs) and old in nodes:
                nodes.remove(old)
        self._makers.update((id(v), node) for v in place.outputs)


def _fields(op: OpDef, composite: Composite) -> Fields:
    """A composite's attributes.

    Raises:
        ModelError: they are no map of names.
    """
    if not composite.attributes:
        return Fields(op.name, {})
    return read_map(Fields(op.name, {}, composite.attributes))


def stranded(
    taken: CompositeNodes, parts: Sequence[tuple[bool, Sequence[Node]]]
) -> dict[tuple[int, ...], str]:
    """Those of the composites taken whose node did not come to the device after all, with the
    reason: on the CPU the operators have better kernels."""
    left = {
        tuple(v.id for v in node.outputs): node.label
        for delegated, nodes in parts
        if not delegated
        for node in nodes
    }
    return {
        outputs: f"as one node, {left[outputs]}, it would stay on the CPU"
        for outputs in sorted(taken.outputs)
        if outputs in left
    }
