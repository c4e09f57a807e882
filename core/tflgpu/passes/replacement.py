"""What replaces a quantized node in the float view, and the nodes that follow it."""

from __future__ import annotations

from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ops.facets import PostOp, Replacement


def put_replacement(
    graph: Graph, node: Node, inputs: list[Value | None], found: Replacement
) -> None:
    """Make of a node, and of its operands in real numbers, what its op says."""
    node.op, node.attrs, node.version = found.op, found.attributes, 1
    for position, data in found.replaced.items():
        inputs[position] = graph.add_const(data, name=node.input(position).name)
    inputs.extend(graph.add_const(c, name=f"{found.op}/table") for c in found.constants)


def put_post_op(graph: Graph, node: Node, raw: Value, rounded: Value, found: PostOp) -> None:
    """Let ``rounded`` be ``raw``, which the node makes, rounded as its op says."""
    graph.add_node(found.op, found.attributes, [raw], [rounded], origins=node.origins)
