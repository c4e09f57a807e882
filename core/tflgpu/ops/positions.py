"""`OpDef.positions`: which positions along an axis an op's results are made of.

A plan for sequences of 32 tokens computes one of 17 where the 15 positions behind it do not count.
They hold anything. An op says of each axis of its operands what it does along it: positions of the
result that count are made of such as count, so that what is behind stays behind; or all are put
together, and then those behind have to hold a number that changes nothing. A result may be longer
or shorter by some positions, the same number at every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Union

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.values import frozen


@frozen
class Along:
    """What an op does along an axis of an operand.

    Attributes:
        axis: The result's axis whose positions that count are made of those that count here, and of
            no others unless there is a ``fill``. None where no axis of the result stands for it:
            positions are put together, or only those that are there at every size are read.
        fill: What positions beyond the size must hold; None where they may hold anything.
        clears: Whether the result is 0 at positions beyond the size then.
    """

    axis: int | None = None
    fill: float | None = None
    clears: bool = False


#: For each axis of an operand; None where an op mixes positions in a way that no number undoes.
Axes = Sequence[Union[Along, None]]


@frozen
class Positions:
    """What an op does along all axes.

    Attributes:
        operands: For each operand, for each axis.
        shapes: Positions of operands that say shapes, which may differ from size to size.
        repeats: Whether axes of the result that no operand has repeat what there is.
        averaged: Axes of operand 0 whose sums are divided by their size.
        is_product: Whether the result is sums of products of operands 0 and 1, and nothing else.
    """

    operands: Sequence[Axes]
    shapes: tuple[int, ...] = ()
    repeats: bool = False
    averaged: tuple[int, ...] = ()
    is_product: bool = False


#: The node at the size of a plan, and the same node at a smaller one.
Rule = Callable[[Node, Node], Union[Positions, str]]


def lowest(dtype: DType) -> float:
    """The number that no other of its type is less than."""
    if dtype.numpy.kind == "f":
        return -math.inf
    return 0 if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float:
    """The number that no other of its type is greater than."""
    if dtype.numpy.kind == "f":
        return math.inf
    return 1 if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).max)


def axes_from(first: int, count: int, fill: float | None = None) -> list[Along | None]:
    """Axes that are those of the result from ``first`` on."""
    return [Along(first + i, fill) for i in range(count)]


def aligned(value: Value | None, rank: int) -> Axes:
    """The axes of an operand that is broadcast to a result of ``rank`` dimensions."""
    return [] if value is None else axes_from(rank - len(value.shape), len(value.shape))


def broadcast(node: Node, cut: Node) -> Positions:
    """Of an op that computes each element of the same, broadcast, elements of its operands."""
    rank = len(node.outputs[0].shape)
    return Positions([aligned(value, rank) for value in node.inputs])


def of_items(node: Node, cut: Node) -> Positions:
    """Of an op that computes an item along axis 0 of that of operand 0."""
    axes: list[Axes] = [[None] * (0 if v is None else len(v.shape)) for v in node.inputs]
    return Positions([[Along(0), *axes[0][1:]], *axes[1:]])


def of_rows(fill: float | None = None, *, clears: bool = False) -> Rule:
    """Of an op that computes a row along the last axis, of as many elements, of that of operand 0,
    among which elements of ``fill`` do not count."""

    def positions(node: Node, cut: Node) -> Positions:
        last = len(node.input(0).shape) - 1
        row = None if fill is None else Along(last, fill, clears)
        return Positions([[*axes_from(0, last), row]])

    return positions


def reshaped(node: Node, cut: Node) -> Positions:
    """Of an op that reads operand 0 in row-major order."""
    image = regrouped(
        node.input(0).shape, cut.input(0).shape, node.outputs[0].shape, cut.outputs[0].shape
    )
    others: list[Axes] = [[] if v is None else [None] * len(v.shape) for v in node.inputs[1:]]
    return Positions([image, *others], tuple(range(1, len(node.inputs))))


def regrouped(shape: Shape, less: Shape, result: Shape, less_result: Shape) -> Axes:
    """The axes of ``shape``, in row-major order another shape: each that changes in size has to be
    an axis there, with as many elements before it."""
    found: list[Along | None] = []
    for axis, (size, real) in enumerate(zip(shape, less, strict=True)):
        if size == real:
            found.append(Along())
            continue
        before = math.prod(shape[:axis]), math.prod(less[:axis])
        at = (
            i
            for i, sizes in enumerate(zip(result, less_result, strict=True))
            if sizes == (size, real)
            and (math.prod(result[:i]), math.prod(less_result[:i])) == before
        )
        target = next(at, None)
        found.append(None if target is None else Along(target))
    return found


def without(axis: int, value: Value, *, gone: bool = False) -> Axes:
    """All axes of an operand but one, which the result has no longer where it is ``gone``."""
    rank = len(value.shape)
    axis %= max(rank, 1)
    return [None if i == axis else Along(i - (gone and i > axis)) for i in range(rank)]
