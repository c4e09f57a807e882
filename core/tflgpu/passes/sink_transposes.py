"""TRANSPOSEs move behind elementwise nodes, to where they meet others and cancel.

    x -> TRANSPOSE p -> LOGISTIC -> RESHAPE to add a 1 -> TRANSPOSE q -> y
    x -> LOGISTIC -> RESHAPE -> TRANSPOSE p and q -> y

Converters from channels-first frameworks put one on either side of each convolution. A region of
elementwise nodes (and others that can work along other axes, as SLICE can) is computed in the order
of its source whenever that leaves fewer TRANSPOSEs.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.facets import Reordered
from tflgpu.ops.transpose import order_of
from tflgpu.passes.base import Pass, PassContext
from tflgpu.values import define

Perm = tuple[int, ...]


def run(graph: Graph, context: PassContext) -> int:
    """Move every TRANSPOSE that it pays to move."""
    rewriter = Rewriter(graph)
    order = _Order(rewriter)
    for node in rewriter.nodes("TRANSPOSE"):
        perm = order_of(node)
        if rewriter.producer(node.input(0), "TRANSPOSE") is not None:
            continue  # the two become one; moving the second away would put that off
        region = None if perm is None else _region(rewriter, context, order, node, perm)
        if region is not None and region.pays(rewriter):
            _move(rewriter, region)
    return rewriter.edits


def _sizes(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


# TRANSPOSE -> region of elementwise nodes


@define(eq=False)
class _Region:
    """Nodes that can work on untransposed operands.

    ``entries`` are the TRANSPOSEs whose results they read, all of one permutation; ``reordered`` is
    what becomes of the nodes that are not elementwise.
    """

    perm: Perm
    entries: dict[int, Node]
    nodes: list[Node]
    reordered: dict[int, Reordered]

    def exits(self, rewriter: Rewriter) -> list[Value]:
        """Values made inside that are read outside."""
        inside = {id(n) for n in self.nodes}
        made = [v for n in self.nodes for v in n.outputs]
        return [
            v
            for v in made
            if rewriter.is_output(v) or any(id(n) not in inside for n in rewriter.uses(v))
        ]

    def pays(self, rewriter: Rewriter) -> bool:
        """Whether fewer TRANSPOSEs are left afterwards."""
        inside = {id(n) for n in self.nodes}
        gone = sum(
            not rewriter.is_output(e.outputs[0])
            and all(id(n) in inside for n in rewriter.uses(e.outputs[0]))
            for e in self.entries.values()
        )
        added = sum(not _meets_transpose(rewriter, v, inside) for v in self.exits(rewriter))
        return bool(self.nodes) and added < gone


def _meets_transpose(rewriter: Rewriter, value: Value, inside: set[int]) -> bool:
    """Whether all outside readers of a value would swallow a TRANSPOSE in front of them."""
    if rewriter.is_output(value):
        return False
    for reader in rewriter.uses(value):
        if id(reader) in inside:
            continue
        if reader.op == "RESHAPE" and _sizes(reader.outputs[0].shape) == _sizes(value.shape):
            uses = rewriter.uses(reader.outputs[0])
            fits = bool(uses) and not rewriter.is_output(reader.outputs[0])
            if not fits or any(n.op != "TRANSPOSE" for n in uses):
                return False
        elif reader.op != "TRANSPOSE":
            return False
    return True


class _Order:
    """Where each node stands in the graph."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._edits = -1
        self._at: dict[int, int] = {}

    def at(self, node: Node) -> int:
        """Its position; all are looked up anew after an edit."""
        if self._edits != self._rewriter.edits:
            self._edits = self._rewriter.edits
            self._at = {id(n): i for i, n in enumerate(self._rewriter.graph.nodes)}
        return self._at[id(node)]


def _region(
    rewriter: Rewriter, context: PassContext, order: _Order, entry: Node, perm: Perm
) -> _Region:
    region = _Region(perm, {id(entry): entry}, [], {})
    transposed: set[int] = set()
    waiting: list[tuple[int, Node]] = []  # a heap: readers of transposed values, in order
    seen: set[int] = set()

    def transpose(value: Value, reached: int) -> None:
        transposed.add(id(value))
        for reader in rewriter.uses(value):
            if order.at(reader) > reached and id(reader) not in seen:
                seen.add(id(reader))
                heapq.heappush(waiting, (order.at(reader), reader))

    transpose(entry.outputs[0], -1)
    while waiting:
        at, node = heapq.heappop(waiting)
        reordered = _reordered(context, node, transposed, perm)
        if reordered is None:
            others = _other_entries(rewriter, context, node, transposed, perm)
        else:
            region.reordered[id(node)] = reordered
            others = []
        if others is not None:
            region.nodes.append(node)
            region.entries.update((id(n), n) for n in others)
            for value in [n.outputs[0] for n in others] + [node.outputs[0]]:
                transpose(value, at)
    return region


def _other_entries(
    rewriter: Rewriter, context: PassContext, node: Node, transposed: set[int], perm: Perm
) -> list[Node] | None:
    """Further TRANSPOSEs that must be in a region for ``node`` to be in it; None where it cannot
    be."""
    definition = context.op(node)
    if definition is None or not definition.is_elementwise(node) or len(node.outputs) != 1:
        return None
    if not is_plain(node):
        return None
    others = []
    for value in node.inputs:
        if value is None or value.is_const or id(value) in transposed:
            continue
        other = rewriter.producer(value, "TRANSPOSE")
        if other is None or order_of(other) != perm:
            return None
        others.append(other)
    shape = node.outputs[0].shape
    runtime = [v for v in node.inputs if v is not None and not v.is_const]
    return others if all(v.shape == shape for v in runtime) else None


def _reordered(
    context: PassContext, node: Node, transposed: set[int], perm: Perm
) -> Reordered | None:
    """The node along other axes, for a node whose operand 0 loses a TRANSPOSE and whose other
    operands are constants; None where its op cannot."""
    op, (first, *others) = context.op(node), node.inputs
    if op is None or op.movement.reorder is None or first is None or id(first) not in transposed:
        return None
    if len(node.outputs) != 1 or len(node.outputs[0].shape) != len(perm):
        return None
    if any(v is not None and not v.is_const for v in others):
        return None
    return op.movement.reorder(node, _inverse(perm))


def _inverse(perm: Perm) -> Perm:
    return tuple(int(i) for i in np.argsort(perm))


def _move(rewriter: Rewriter, region: _Region) -> None:
    perm = region.perm
    back = _inverse(perm)
    plain: dict[int, Value] = {id(n.outputs[0]): n.input(0) for n in region.entries.values()}
    exits = {id(v) for v in region.exits(rewriter)}
    order = rewriter.const(np.array(perm, np.int32), "perm")
    for node in region.nodes:
        (result,) = node.outputs
        shape = tuple(result.shape[axis] for axis in back)
        new = region.reordered.get(id(node))
        inputs = _untransposed(rewriter, node, plain, back, new)
        plain[id(result)] = rewriter.result_of(
            node.op,
            node.attrs if new is None else new.attributes,
            inputs,
            (shape, result.dtype, result.name + "/untransposed"),
            before=node,
            origins=merged_origins(node, *_sources(region, node)),
            version=node.version,
        )
        if id(result) in exits:
            rewriter.replace([node], "TRANSPOSE", NoAttrs(), [plain[id(result)], order])
        else:
            rewriter.remove(node)
    rewriter.count()


def _sources(region: _Region, node: Node) -> list[Node]:
    made_by = {id(e.outputs[0]): e for e in region.entries.values()}
    return [made_by[id(v)] for v in node.inputs if v is not None and id(v) in made_by]


def _untransposed(
    rewriter: Rewriter, node: Node, plain: Mapping[int, Value], back: Perm, new: Reordered | None
) -> list[Value | None]:
    inputs: list[Value | None] = []
    for i, value in enumerate(node.inputs):
        if value is not None and id(value) in plain:
            inputs.append(plain[id(value)])
        elif new is not None:
            inputs.append(rewriter.const(new.constants[i]) if i in new.constants else value)
        else:
            inputs.append(value and _untransposed_constant(rewriter, value, back))
    return inputs


def _untransposed_constant(rewriter: Rewriter, value: Value, back: Perm) -> Value:
    """A constant that broadcasts against untransposed operands as it did against transposed."""
    assert value.data is not None
    if value.elements == 1 or value.dtype is DType.STRING:
        return value
    shape = (1,) * (len(back) - len(value.shape)) + value.shape
    return rewriter.const(np.array(value.data.reshape(shape).transpose(back)), value.name)


PASS = Pass("sink_transposes", run)
