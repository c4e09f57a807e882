"""`OpDef.batch` of ops that treat the rows of their operands alike.

Items lie one after another along axis 0. An op that makes row i of its result of row i of its
operands alone therefore computes several items as it is: what has to be looked at are operands that
are the same for all items. One that works along axis 0 does it along axis 1 of what is [count, ...]
before it, which is the same memory (`lifted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.ops.facets import Batched, Items

Batch = Callable[[Node, Items], Batched | str]


def elementwise(node: Node, items: Items) -> Batched | str:
    """Of an op whose result's elements depend on the same, broadcast, elements of its operands."""
    result = node.outputs[0].shape
    constants: dict[int, Array] = {}
    as_it_is = True
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        has_rows = len(value.shape) == len(result) and bool(result)
        if i in items.operands:
            as_it_is = as_it_is and has_rows and value.shape[0] == result[0]
        elif has_rows and value.shape[0] != 1:
            as_it_is = as_it_is and value.data is not None
            if value.data is not None:
                constants[i] = items.times(value.data)
    if as_it_is:
        return Batched(node.attrs, constants)
    return broadcast(node, items)


def broadcast(node: Node, items: Items, kept: int = 0) -> Batched:
    """Of an op that broadcasts its operands, aligned at their last axes: those of each item get an
    axis for the items, in front of as many as the result has; an axis of 1 is taken for it, where
    it is not among the last ones that are ``kept``."""
    result = node.outputs[0].shape
    shapes = {}
    for i in items.operands:
        whole = (1,) * (len(result) - len(node.input(i).shape)) + node.input(i).shape
        is_free = result[:1] == (1,) and len(result) > kept
        shapes[i] = (items.count, *(whole[1:] if is_free else whole))
    return Batched(node.attrs, shapes=shapes)


def lifted(
    node: Node,
    items: Items,
    operands: Sequence[int],
    attributes: Any = None,
    constants: Mapping[int, Array] | None = None,
) -> Batched | str:
    """Of an op that does along axis i + 1 of operands with one more axis what it does along axis i.

    Args:
        node: The node.
        items: Of which items.
        operands: Positions of all operands that have such an axis. Those that are the same for all
            items are repeated, which has to be possible before.
        attributes: Those that speak of the next axes; None for the node's.
        constants: New contents of operands that say axes.
    """
    repeated = dict(constants or {})
    for i in operands:
        value = node.optional_input(i)
        if value is None or i in items.operands:
            continue
        if value.data is None:
            return f"operand {i} is the same for all items, and not a constant"
        repeated[i] = np.repeat(value.data[None], items.count, axis=0)
    strange = items.operands - set(operands)
    if strange:
        return f"operand {min(strange)} is different from item to item"
    shapes = {i: (items.count, *node.input(i).shape) for i in items.operands}
    return Batched(node.attrs if attributes is None else attributes, repeated, shapes=shapes)


def next_axes(axes: Array, rank: int) -> Array:
    """A constant that says axes of a tensor of ``rank`` dimensions, of one that has one more in
    front."""
    return np.asarray(np.where(axes < 0, axes + rank, axes) + 1, axes.dtype)


def each_row(*operands: int, rank: int = 1) -> Batch:
    """Of an op that computes each row of its results from that row of ``operands`` (all of which,
    where they are there, are of each item), and from others that are the same for all. Operands of
    fewer than ``rank`` dimensions do not have rows."""

    def batch(node: Node, items: Items) -> Batched | str:
        refused = rows_of(node, items, operands, rank)
        return Batched(node.attrs) if refused is None else refused

    return batch


def rows_of(node: Node, items: Items, operands: Sequence[int], rank: int = 1) -> str | None:
    """Why not just these operands are of each item, with that many dimensions; None where they
    are."""
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
    """Of an op that makes rows of rows, and is told the shape of its result by a constant
    operand."""
    sizes = node.input(operand).data
    if sizes is None or not sizes.size or sizes.reshape(-1)[0] < 0:
        return f"operand {operand}, a shape, is not known"
    changed = sizes.copy()
    changed.reshape(-1)[0] *= items.count
    return Batched(node.attrs, {operand: changed})
