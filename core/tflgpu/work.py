"""How much a node computes and moves: estimates, for ranking and for reports only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import attrs

from tflgpu.ir.graph import Node, Value


@attrs.frozen
class Work:
    """Floating-point operations (a multiply-add is two) and bytes read and written."""

    flops: int = 0
    nbytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)


def estimate(node: Node) -> Work:
    """The work of a node, from its shapes.

    Ops with a filter count its multiply-adds; all others count one operation for each element of
    their largest operand or result.
    """
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    nbytes = sum(v.elements * max(1, v.dtype.itemsize) for v in values)
    count = _FLOPS.get(node.op)
    flops = count(node) if count is not None else None
    if flops is None:
        flops = max((v.elements for v in values), default=0)
    return Work(flops, nbytes)


def _operand(node: Node, index: int, rank: int) -> Value | None:
    value = node.optional_input(index)
    return value if value is not None and len(value.shape) >= rank else None


def _filter_of(weights: int, axes: slice) -> Callable[[Node], int | None]:
    """An op whose every result is a sum over some axes of its filter."""

    def count(node: Node) -> int | None:
        value = _operand(node, weights, 2)
        if value is None or not node.outputs:
            return None
        return 2 * node.outputs[0].elements * prod(value.shape[axes])

    return count


def _transposed(weights: int, source: int) -> Callable[[Node], int | None]:
    """A transposed convolution: every operand element goes to each tap of an OHWI filter."""

    def count(node: Node) -> int | None:
        value, operand = _operand(node, weights, 4), _operand(node, source, 1)
        if value is None or operand is None:
            return None
        return 2 * operand.elements * prod(value.shape[:3])

    return count


def _matmul(node: Node) -> int | None:
    a = _operand(node, 0, 2)
    if a is None or not node.outputs:
        return None
    depth = a.shape[-2] if getattr(node.attrs, "adj_x", False) else a.shape[-1]
    return 2 * node.outputs[0].elements * depth


def _pool(node: Node) -> int | None:
    height = getattr(node.attrs, "filter_height", None)
    width = getattr(node.attrs, "filter_width", None)
    if height is None or width is None or not node.outputs:
        return None
    return int(node.outputs[0].elements * height * width)


def _recurrent(node: Node) -> int | None:
    """Every weight of rank 2 is used once a batch and time step."""
    source = _operand(node, 0, 2)
    if source is None:
        return None
    weights = sum(v.elements for v in node.inputs[1:] if v is not None and len(v.shape) == 2)
    return 2 * weights * prod(source.shape[:-1])


_FLOPS: Mapping[str, Callable[[Node], int | None]] = {
    "CONV_2D": _filter_of(1, slice(1, None)),  # OHWI
    "DEPTHWISE_CONV_2D": _filter_of(1, slice(1, 3)),  # 1HWO
    "CONV_3D": _filter_of(1, slice(0, 4)),  # DHWIO
    "FULLY_CONNECTED": _filter_of(1, slice(1, None)),  # OI
    "TRANSPOSE_CONV": _transposed(1, 2),
    "Convolution2DTransposeBias": _transposed(1, 0),
    "BATCH_MATMUL": _matmul,
    "AVERAGE_POOL_2D": _pool,
    "MAX_POOL_2D": _pool,
    "LSTM": _recurrent,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _recurrent,
}
