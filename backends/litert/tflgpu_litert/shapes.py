"""Results of which LiteRT tells the shape only when it has run, although it follows from
constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tflgpu.ir.graph import Node, Shape


def _multinomial(node: Node) -> Sequence[Shape] | None:
    """A row of choices for each row of odds (operand 0), as many as operand 1 says."""
    odds, count = node.inputs
    if odds is None or count is None or count.data is None or len(odds.shape) != 2:
        return None
    return [(odds.shape[0], int(count.data.reshape(-1)[0]))]


_SHAPES: Mapping[str, Callable[[Node], Sequence[Shape] | None]] = {"MULTINOMIAL": _multinomial}


def told_late(node: Node) -> Sequence[Shape | None]:
    """The shape of each of a node's results where LiteRT does not tell it before a run, though it
    is known; None for any other. What a run makes is held against it."""
    known = _SHAPES.get(node.op)
    found = None if known is None else known(node)
    return [None] * len(node.outputs) if found is None else found
