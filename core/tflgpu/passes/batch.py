"""Makes a graph for several items, [n, ...], of a graph for one item, [1, ...].

Most files say 1 where a batch would be, and some of their constants too (a RESHAPE to [1, 1001]),
so that giving the inputs another shape is not enough, or worse, mixes items. Here every node is
asked, by `OpDef.batch`, what it has to become so that each item is computed as it would be alone.
One that cannot say so is the reason why the model is not run in batches.

The items of a tensor lie one after another along axis 0: what has the shape [3, 5] for one item has
[3 * n, 5] for n. What is the same for all items (constants, and what is made of them alone) stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import GraphError, ModelError
from tflgpu.errors.blame import Failed, attempt, listed
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.verify import verify
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import NoAttrs, OpDef, known_operands
from tflgpu.ops.concat import ConcatAttrs
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.unknown import unknown_reason


def batched(graph: Graph, count: int, ops: Mapping[str, OpDef]) -> Graph | Unsupported:
    """The graph for ``count`` items, or why there is none. Its inputs and outputs keep their ids.

    Args:
        graph: For one item: its inputs and outputs have a leading dimension of 1.
        count: How many items, from 1.
        ops: Op definitions by name.

    Raises:
        GraphError: an op's definition made something that is no graph.
    """
    made = graph.copy()
    work = BatchedGraph(made, count, ops)
    refused = work.begin()
    for node in () if refused else tuple(made.nodes):
        refused = work.add(node)
        if refused:
            refused = f"operator {node.label}: {refused}"
            break
    refused = refused or work.end()
    if refused:
        return Unsupported(refused)
    made.nodes = work.nodes
    made.prune()
    verify(made, "batched")
    return made


class BatchedGraph:
    """A graph on its way; which of its values are of each item so far."""

    def __init__(self, graph: Graph, count: int, ops: Mapping[str, OpDef]) -> None:
        self.graph, self.count, self.ops = graph, count, ops
        self.of_each: set[int] = set()
        self.nodes: list[Node] = []  # what the graph is made of
        self._shapes = {v.id: v.shape for v in graph.values.values()}  # for one item

    def begin(self) -> str | None:
        """The inputs."""
        for value in self.graph.values.values():
            if value.is_variable:
                return f"{value.named} is state, which each run leaves to the next"
        for value in self.graph.inputs:
            if value.shape[:1] != (1,):
                return (
                    f"input {value.named} has the shape {listed(value.shape)}, without a leading "
                    "dimension of 1"
                )
            refused = self.widen(value)
            if refused:
                return refused
        return None

    def add(self, node: Node) -> str | None:
        """A node that follows those before it."""
        unknown = unknown_reason(node.attrs)
        if unknown is not None or not node.shapes_known:
            return unknown or "the shapes of its results are not known before the model runs"
        here = {i for i, v in enumerate(node.inputs) if v is not None and v.id in self.of_each}
        if not here:
            self.nodes.append(node)
            return None
        definition = self.ops.get(node.op)
        if definition is None or definition.batch is None:
            return f"{node.op} does not say that it keeps the items of a batch apart"
        # Asked about one item, so that shapes are those of the file.
        found = attempt(definition.batch, self._single(node), Items(self.count, frozenset(here)))
        if isinstance(found, Failed):
            return f"asked how it computes a batch, it raised {found}"
        if not isinstance(found, Batched):
            return found if isinstance(found, str) and found else "it cannot compute a batch"
        return self._become(node, found)

    def end(self) -> str | None:
        """The outputs."""
        for value in self.graph.outputs:
            if value.id not in self.of_each:
                return f"output {value.named} does not depend on the inputs"
            if self._shapes[value.id][:1] != (1,):
                return (
                    f"output {value.named} has the shape {listed(self._shapes[value.id])}, "
                    "without a leading dimension of 1"
                )
        return None

    def widen(self, value: Value) -> str | None:
        """Let a value be of each item; or why it cannot."""
        if _by_rows(value):
            return f"{value.named} has a scale for each row of axis 0, on which the items lie"
        value.shape = self._wide(value)
        if value.shape_signature is not None and value.shape_signature[:1] == (1,):
            value.shape_signature = (self.count, *value.shape_signature[1:])
        try:
            check_size(value.shape, value.dtype, value.named)
        except ModelError as error:
            return str(error)
        self.of_each.add(value.id)
        return None

    # Inside

    def _single(self, node: Node) -> Node:
        def single(value: Value) -> Value:
            return attrs.evolve(value, shape=self._shapes[value.id])

        return attrs.evolve(
            node,
            inputs=[None if v is None else single(v) for v in node.inputs],
            outputs=[single(v) for v in node.outputs],
        )

    def _become(self, node: Node, found: Batched) -> str | None:
        node.attrs = found.attributes
        for i, data in found.constants.items():
            old = node.input(i)
            if _by_rows(old):
                return f"{old.named} has a scale for each row of axis 0, on which the items lie"
            data.setflags(write=False)
            node.inputs[i] = self.graph.add_value(
                data.shape, old.dtype, name=old.name, data=data, quant=old.quant
            )
            self._shapes[self.graph.next_id - 1] = data.shape
        each = [i for i in range(len(node.inputs)) if self._is_of_each(node.inputs[i])]
        for i, shape in found.shapes.items():
            node.inputs[i] = self._reshaped(node.input(i), shape, node)
        for i, data in found.columns.items():
            node.inputs[i] = self._widened(node.input(i), data, node)
        for i in each if found.mixed else ():
            node.inputs[i] = self._by_turns(node.input(i), node)
        if found.operands is not None:
            node.inputs = [node.inputs[i] for i in found.operands]
        if found.op:
            node.op, node.version, node.source = found.op, 1, None
        definition = self.ops.get(node.op)
        if definition is None:
            raise GraphError(
                f"{node.label}: to compute a batch it became {node.op}, which is no op"
            )
        specs = attempt(definition.infer, node.attrs, known_operands(node.inputs))
        if isinstance(specs, Failed):
            return f"it does not take a batch: {specs}"
        wide = [self._wide(value) for value in node.outputs]
        shapes = [s.shape for s in specs]
        fits = list(map(math.prod, shapes)) == list(map(math.prod, wide))
        if (shapes != wide and not (found.shapes and fits)) or [s.dtype for s in specs] != [
            v.dtype for v in node.outputs
        ]:
            return (
                f"of a batch of {self.count} it would make {', '.join(map(listed, shapes))}, and "
                f"not {', '.join(map(listed, wide))}"
            )
        for value in node.outputs:
            refused = self.widen(value)
            if refused:
                return refused
        results = node.outputs
        node.outputs = [
            v if shape == v.shape else self._like(v, shape)
            for v, shape in zip(results, shapes, strict=True)
        ]
        self.nodes.append(node)
        for i, value in enumerate(results):
            if node.outputs[i] is not value:
                self._add("RESHAPE", ReshapeAttrs(value.shape), [node.outputs[i]], value, node)
            elif found.mixed and self._rows(value) > 1:
                node.outputs[i] = self._like(value, value.shape)
                self._one_after_another(node.outputs[i], value, node)
        return None

    def _is_of_each(self, value: Value | None) -> bool:
        return value is not None and value.id in self.of_each

    def _rows(self, value: Value) -> int:
        """Of one item."""
        return value.shape[0] // self.count

    def _like(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.graph.add_value(shape, value.dtype, name=value.name, quant=value.quant)

    def _add(
        self, op: str, attributes: Any, inputs: list[Value | None], out: Value, node: Node
    ) -> None:
        self.nodes.append(Node(op, attributes, inputs, [out], origins=node.origins))

    def _reshaped(self, value: Value, shape: tuple[int, ...], node: Node) -> Value:
        if value.shape == shape:
            return value
        made = self._like(value, shape)
        self._add("RESHAPE", ReshapeAttrs(shape), [value], made, node)
        return made

    def _widened(self, value: Value, columns: Array, node: Node) -> Value:
        before = self._constant("columns", columns, value.dtype)
        wide = (*value.shape[:-1], value.shape[-1] + columns.shape[-1])
        made = self._like(value, wide)
        self._add("CONCATENATION", ConcatAttrs(len(wide) - 1), [before, value], made, node)
        return made

    def _constant(self, name: str, data: Array, dtype: DType) -> Value:
        data.setflags(write=False)
        return self.graph.add_value(data.shape, dtype, name=name, data=data)

    def _turned(self, value: Value, first: int, second: int, node: Node) -> Value:
        """[first * second, ...] with these two in the other order."""
        rest = value.shape[1:]
        apart = self._reshaped(value, (first, second, *rest), node)
        order = np.array([1, 0, *range(2, len(rest) + 2)], np.int32)
        axes = self._constant("order", order, DType.I32)
        made = self._like(value, (second, first, *rest))
        self._add("TRANSPOSE", NoAttrs(), [apart, axes], made, node)
        return made

    def _by_turns(self, value: Value, node: Node) -> Value:
        """The first row of each item, then the second one of each, of rows item by item."""
        if self._rows(value) <= 1:
            return value
        return self._reshaped(
            self._turned(value, self.count, self._rows(value), node), value.shape, node
        )

    def _one_after_another(self, value: Value, out: Value, node: Node) -> None:
        turned = self._turned(value, self._rows(value), self.count, node)
        self._add("RESHAPE", ReshapeAttrs(out.shape), [turned], out, node)

    def _wide(self, value: Value) -> tuple[int, ...]:
        return Items(self.count, frozenset()).wide(self._shapes[value.id])


def _by_rows(value: Value) -> bool:
    return value.quant is not None and value.quant.per_axis and value.quant.axis == 0
