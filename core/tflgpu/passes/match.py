"""Questions about nodes that several passes ask."""

from __future__ import annotations

from collections.abc import Iterator

from tflgpu.ir.graph import Node, Value


def both_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """The two operands of a node, in either order."""
    a, b = node.input(0), node.input(1)
    yield a, b
    yield b, a
