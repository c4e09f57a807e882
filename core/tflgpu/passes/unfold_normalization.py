"""A normalization between RESHAPEs that undo each other works on the tensor that was reshaped.

    x -> RESHAPE -> MEAN_STDDEV_NORMALIZATION -> RESHAPE -> y
    x -> MEAN_STDDEV_NORMALIZATION, over the axes that these were in x -> y

Keras computes layer normalization by its batch normalization of images, with the rows as channels:
kernels that read one number where they could read four. Where the last RESHAPE does not lead back
to x's shape, it stays.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from tflgpu.ir.graph import Node, Shape
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import reduced_axes
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Take away such a pair."""
    axes = reduced_axes(NAME, node.attrs.axes, len(node.input(0).shape))
    reshaped = None if node.attrs.groups != 1 else _reshaped(rewriter, node, axes)
    if reshaped is None:
        return False
    first, last, moved = reshaped
    source, attributes = first.input(0), MeanStddev(tuple(moved), node.attrs.epsilon)
    origins = merged_origins(first, node, last)
    if source.shape == last.outputs[0].shape:
        rewriter.replace([last], NAME, attributes, [source]).origins = origins
    else:  # a RESHAPE to a third shape, which stays one
        spec = source.shape, source.dtype, source.name + "/normalized"
        value = rewriter.result_of(NAME, attributes, [source], spec, before=last, origins=origins)
        rewriter.set_input(last, 0, value)
    return True


def _reshaped(
    rewriter: Rewriter, node: Node, axes: Collection[int]
) -> tuple[Node, Node, list[int]] | None:
    """The RESHAPE before a node, the one by which its result is brought back, and where ``axes``
    were before."""
    source = node.input(0)
    before = rewriter.producer(source, "RESHAPE")
    behind = rewriter.sole_use(node.outputs[0], "RESHAPE")
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
