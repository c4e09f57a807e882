"""Editing a graph: the maker and the readers of each value stay right while nodes change.

A pass makes one `Rewriter` a run, walks `Rewriter.nodes`, and edits through it alone. The graph's
inputs and outputs stay the same `Value` objects under all edits, so that their ids go on
naming the file's tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import GraphError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.stored_reals import ConstantData


class Rewriter:
    """An index of uses over a graph, and the edits that keep it right.

    Attributes:
        graph: The graph that is edited.
        edits: How many rewrites were counted (see `count`).
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edits = 0
        self._live = {id(n) for n in graph.nodes}
        self._producers = {id(v): n for n in graph.nodes for v in n.outputs}
        self._uses: dict[int, list[Node]] = {}
        self._outputs = {id(v) for v in graph.outputs}
        self._inputs = {id(v) for v in graph.inputs}
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None:
                    self._uses.setdefault(id(value), []).append(node)

    # Questions

    def nodes(self, *ops: str) -> Iterator[Node]:
        """The nodes of the given ops (of all, without any), in order; nodes that go away or come
        while walking are left out, and so are those with a shape that is not known."""
        for node in list(self.graph.nodes):
            if id(node) in self._live and (not ops or node.op in ops) and node.shapes_known:
                yield node

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """The node that makes ``value``, if it is of one of ``ops`` (of any, without ops)."""
        node = None if value is None else self._producers.get(id(value))
        return node if node is not None and (not ops or node.op in ops) else None

    def uses(self, value: Value) -> Sequence[Node]:
        """The nodes that read ``value``, once for each time they do."""
        return tuple(self._uses.get(id(value), ()))

    def sole_use(self, value: Value, *ops: str) -> Node | None:
        """The one node that reads ``value``, once; None where there are more or fewer readers,
        where the value is an output of the graph, or where the node is of other ops."""
        uses = self._uses.get(id(value), [])
        if len(uses) != 1 or self.is_output(value):
            return None
        return uses[0] if not ops or uses[0].op in ops else None

    def is_output(self, value: Value) -> bool:
        """Whether ``value`` is an output of the graph."""
        return id(value) in self._outputs

    def is_fixed(self, value: Value) -> bool:
        """Whether ``value`` must go on existing under its id: an input or output of the graph."""
        return id(value) in self._outputs or id(value) in self._inputs

    # Edits

    def count(self, edits: int = 1) -> None:
        """Count a rewrite; what a pass's ``run`` returns."""
        self.edits += edits

    def const(self, data: Array, name: str = "") -> Value:
        """A new constant."""
        data.setflags(write=False)
        return self.graph.add_const(data, name=name)

    def value(self, shape: Sequence[int], dtype: DType, name: str = "") -> Value:
        """A new value, to be the output of a node."""
        return self.graph.add_value(shape, dtype, name=name)

    def evolve(self, node: Node, **changes: Any) -> None:
        """Change attributes of a node."""
        node.attrs = attrs.evolve(node.attrs, **changes)

    def set_input(self, node: Node, index: int, value: Value | None) -> None:
        """Make a node read another value; an index past the end appends absent inputs first."""
        while len(node.inputs) <= index:
            node.inputs.append(None)
        old = node.inputs[index]
        if old is not None:
            self._drop_use(old, node)
        node.inputs[index] = value
        if value is not None:
            self._uses.setdefault(id(value), []).append(node)

    def insert(
        self,
        op: str,
        attributes: Any,
        inputs: Iterable[Value | None],
        outputs: Iterable[Value],
        *,
        before: Node,
        origins: Iterable[int] = (),
        version: int = 1,
    ) -> Node:
        """A new node right before another one. Its outputs must not be made by any node."""
        node = self.graph.add_node(
            op, attributes, inputs, outputs, version=version, origins=origins, before=before
        )
        self._live.add(id(node))
        for value in node.outputs:
            if id(value) in self._producers:
                raise GraphError(f"{node.label}: {value} is made by another node already")
            self._producers[id(value)] = node
        for source in node.inputs:
            if source is not None:
                self._uses.setdefault(id(source), []).append(node)
        return node

    def result_of(
        self,
        op: str,
        attributes: Any,
        inputs: Iterable[Value | None],
        spec: tuple[Sequence[int], DType, str],
        *,
        before: Node,
        origins: Iterable[int] | None = None,
        version: int = 1,
    ) -> Value:
        """The one result of a new node right before another one, whose origins it has unless others
        are given; ``spec`` is the result's shape, type and name."""
        made = self.value(*spec)
        origins = before.origins if origins is None else origins
        self.insert(op, attributes, inputs, [made], before=before, origins=origins, version=version)
        return made

    def remove(self, node: Node) -> None:
        """Take a node out. Readers of its outputs must be given something else before the pass
        ends, or the outputs another producer."""
        self.graph.remove(node)
        self._live.discard(id(node))
        for value in node.outputs:
            if self._producers.get(id(value)) is node:
                del self._producers[id(value)]
        for source in node.inputs:
            if source is not None:
                self._drop_use(source, node)

    def replace(
        self,
        nodes: Sequence[Node],
        op: str,
        attributes: Any,
        inputs: Iterable[Value | None],
        *,
        version: int = 1,
    ) -> Node:
        """Put one node in the place of the last of ``nodes`` (all removed), with that one's
        outputs and the origins of all."""
        last = nodes[-1]
        node = Node(op, attributes, [], list(last.outputs), version, merged_origins(*nodes))
        self.graph.nodes.insert(self.graph.nodes.index(last), node)
        self._live.add(id(node))
        for old in nodes:
            self.remove(old)
        self._producers.update((id(v), node) for v in node.outputs)
        for i, source in enumerate(inputs):
            self.set_input(node, i, source)
        return node

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every node that reads ``old`` read ``new``. The graph's outputs stay."""
        for node in set(self.uses(old)):
            for i, value in enumerate(node.inputs):
                if value is old:
                    self.set_input(node, i, new)

    def absorb(self, node: Node, follower: Node) -> None:
        """Let ``node`` make the one output of ``follower``, the only reader of its first output,
        and take ``follower`` out."""
        (out,) = follower.outputs
        dead = node.outputs[0]
        self._merge_origins(node, follower)
        self.remove(follower)
        self._producers.pop(id(dead), None)
        node.outputs[0] = out
        self._producers[id(out)] = node

    def bypass(self, node: Node, index: int = 0) -> bool:
        """Take out a node whose one output equals its input ``index``, in shape and contents.

        The readers of its output read the input instead. An output of the graph keeps its value:
        then the input's producer makes it. False, and no edit, where neither is possible or the
        two are not of one type and quantization.
        """
        source, (out,) = node.input(index), node.outputs
        if source.dtype is not out.dtype or source.quant != out.quant:
            return False
        maker = self.producer(source)
        if not self.is_output(out):
            if maker is not None:
                self._merge_origins(maker, node)
            self.remove(node)
            self.replace_uses(out, source)
            return True
        if maker is None or self.is_fixed(source) or source.shape != out.shape:
            return False
        self._merge_origins(maker, node)
        self.remove(node)
        self.replace_uses(source, out)
        maker.outputs[[v is source for v in maker.outputs].index(True)] = out
        self._producers.pop(id(source), None)
        self._producers[id(out)] = maker
        return True

    def to_constant(self, node: Node, results: Sequence[ConstantData]) -> None:
        """Take out a node and make its outputs constants."""
        self.remove(node)
        for value, contents in zip(node.outputs, results, strict=True):
            if isinstance(contents, np.ndarray):
                contents.setflags(write=False)
            value.contents = contents

    # Inside

    def _drop_use(self, value: Value, node: Node) -> None:
        uses = self._uses[id(value)]
        uses.pop([n is node for n in uses].index(True))

    def _merge_origins(self, node: Node, other: Node) -> None:
        node.origins = merged_origins(node, other)


def merged_origins(*nodes: Node) -> tuple[int, ...]:
    """The operators of the file that several nodes stand for, in order."""
    return tuple(sorted({origin for node in nodes for origin in node.origins}))


def with_all_results(graph: Graph) -> Graph:
    """The same graph with every result of its nodes as an output, so that no pass can remove a
    tensor and all can be read after a run."""
    whole = graph.copy()
    given = {v.id for v in whole.outputs}
    whole.outputs += [v for node in whole for v in node.outputs if v.id not in given]
    return whole
