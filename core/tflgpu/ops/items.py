"""`OpDef.batch` of ops that treat the rows of their operands alike.

Items lie one after another along axis 0. An op that makes row i of its result of row i of its operands
alone therefore computes several items as it is: what has to be looked at are operands that are the same
for all items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.ir.brief import listed
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.ops.facets import Batched, Items

Batch = Callable[[Node, Items], Batched | str]


def elementwise(node: Node, items: Items) -> Batched | str:
    """Of an op whose result's elements depend on the same, broadcast, elements of its operands."""
    result = node.outputs[0].shape
    constants: dict[int, Array] = {}
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        has_rows = len(value.shape) == len(result) and bool(result)
        if i in items.operands:
            if not has_rows or value.shape[0] != result[0]:
                return (
                    f"operand {i}, {listed(value.shape)}, is broadcast to {listed(result)} along "
                    "the axis that the items lie on"
                )
        elif has_rows and value.shape[0] != 1:
            if value.data is None:
                return f"operand {i} is the same for all items, and not a constant"
            constants[i] = items.times(value.data)
    return Batched(node.attrs, constants)


def each_row(*operands: int, rank: int = 1) -> Batch:
    """Of an op that computes each row of its results from that row of ``operands`` (all of which,
    where they are there, are of each item), and from others that are the same for all. Operands of
    fewer than ``rank`` dimensions do not have rows."""

    def batch(node: Node, items: Items) -> Batched | str:
        refused = rows_of(node, items, operands, rank)
        return Batched(node.attrs) if refused is None else refused

    return batch


def rows_of(node: Node, items: Items, operands: Sequence[int], rank: int = 1) -> str | None:
    """Why not just these operands are of each item, with that many dimensions; None where they are."""
    there = {i for i in operands if node.optional_input(i) is not None}
    strange = sorted(items.operands ^ there)
    if strange:
        which = "is" if strange[0] in items.operands else "is not"
        return f"operand {strange[0]} {which} different from item to item"
    few = [i for i in sorted(there) if len(node.input(i).shape) < rank]
    if few:
        return f"operand {few[0]}, {listed(node.input(few[0]).shape)}, is one row and not several"
    return None


def along(axis: int, rank: int) -> str | None:
    """Why an op that works along ``axis`` mixes items; None where it does not."""
    return "it works along axis 0, on which the items lie" if axis % max(rank, 1) == 0 else None


def as_they_are(node: Node, items: Items) -> Batched | str:
    """Of an op that puts nothing but its operands side by side: constants are repeated."""
    constants: dict[int, Array] = {}
    for i, value in enumerate(node.inputs):
        if value is None or i in items.operands:
            continue
        if value.data is None or not value.shape:
            return f"operand {i} is the same for all items, and not a constant that has rows"
        constants[i] = items.times(value.data)
    return Batched(node.attrs, constants)


def first_size(node: Node, items: Items, operand: int) -> Batched | str:
    """Of an op that makes rows of rows, and is told the shape of its result by a constant operand."""
    sizes = node.input(operand).data
    if sizes is None or not sizes.size or sizes.reshape(-1)[0] < 0:
        return f"operand {operand}, a shape, is not known"
    changed = sizes.copy()
    changed.reshape(-1)[0] *= items.count
    return Batched(node.attrs, {operand: changed})
