"""A normalization between moves that undo each other works on the tensor that was moved.

    x -> RESHAPE -> TRANSPOSE p -> MEAN_STDDEV_NORMALIZATION -> TRANSPOSE -> RESHAPE -> y
    x -> MEAN_STDDEV_NORMALIZATION, over the axes that these were in x -> y

Keras computes layer normalization by its batch normalization of images, with the rows as channels:
two transpositions, and kernels that read one number where they could read four. Either pair of
moves may be missing. Where the last RESHAPE does not lead back to x's shape, it stays.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import reduced_axes
from tflgpu.ops.transpose import order_of
from tflgpu.passes.base import Pass, per_node
from tflgpu.passes.context import PassContext


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Take away such a move."""
    source, last = node.input(0), node
    axes: Collection[int] = reduced_axes(NAME, node.attrs.axes, len(source.shape))
    nodes = [node]
    turned = _turned(rewriter, node)
    if turned is not None:
        first, last, order = turned
        source, axes = first.input(0), sorted(order[axis] for axis in axes)
        nodes += [first, last]
    reshaped = _reshaped(rewriter, source, last.outputs[0], axes)
    if reshaped is not None:
        first, last, axes = reshaped
        source = first.input(0)
        nodes += [first, last]
    if last is node:
        return False
    attributes, origins = MeanStddev(tuple(axes), node.attrs.epsilon), merged_origins(*nodes)
    if source.shape == last.outputs[0].shape:
        rewriter.replace([last], NAME, attributes, [source]).origins = origins
    else:  # a RESHAPE to a third shape, which stays one
        value = rewriter.value(source.shape, source.dtype, source.name + "/normalized")
        rewriter.insert(NAME, attributes, [source], [value], before=last, origins=origins)
        rewriter.set_input(last, 0, value)
    return True


def _turned(rewriter: Rewriter, node: Node) -> tuple[Node, Node, list[int]] | None:
    """The TRANSPOSE before a node, the one behind it that undoes it, and the order of the first."""
    before = rewriter.producer(node.input(0), "TRANSPOSE")
    behind = rewriter.sole_use(node.outputs[0], "TRANSPOSE")
    if before is None or behind is None:
        return None
    first, second = order_of(before), order_of(behind)
    if first is None or second is None:
        return None
    same = [first[axis] for axis in second] == list(range(len(first)))
    return (before, behind, list(first)) if same else None


def _reshaped(
    rewriter: Rewriter, source: Value, result: Value, axes: Collection[int]
) -> tuple[Node, Node, list[int]] | None:
    """The RESHAPE that makes ``source``, the one that ``result`` is brought back by, and where
    ``axes`` were before."""
    before = rewriter.producer(source, "RESHAPE")
    behind = rewriter.sole_use(result, "RESHAPE")
    if before is None or behind is None:
        return None
    moved = _last_axes(source.shape, axes, before.input(0).shape)
    return None if moved is None else (before, behind, moved)


def _last_axes(shape: Shape, axes: Collection[int], other: Shape) -> list[int] | None:
    """The last axes of ``other`` that hold what ``axes`` of ``shape`` do, of the same elements;
    None where these are not the last ones of ``shape``, 1s aside, or where ``other`` splits
    elsewhere."""
    reduced = [axis in axes for axis, size in enumerate(shape) if size != 1]
    count = sum(reduced)
    if not count or not all(reduced[-count:]):
        return None
    wanted, found = math.prod(shape[axis] for axis in axes), 1
    moved: list[int] = []
    for axis in reversed(range(len(other))):
        if found == wanted:
            break
        found *= other[axis]
        moved.insert(0, axis)
    return moved if found == wanted else None


PASS = Pass("unfold_normalization", per_node(_rewrite, NAME), phase=12)
