"""Questions about constants and nodes that several passes ask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value


def f32(data: Array) -> Array:
    """A constant's contents as f32."""
    return np.asarray(data, np.float32, order="C")


def both_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """The two operands of a node, in either order."""
    a, b = node.input(0), node.input(1)
    yield a, b
    yield b, a
