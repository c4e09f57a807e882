"""Facets: what others ask about an op besides its results.

A pass, an estimate or a report never looks at an op's name. It asks the op's definition, and a
plugin's op answers as a shipped one does. An op with nothing to say sets none of these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.values import field, frozen

#: From a number per input channel to numbers that broadcast against a filter.
Spread = Callable[[Array], Array]


class NarrowTypes(enum.Enum):
    """What an op does with tensors whose type a graph holds as another: bf16 as f32, whole numbers
    of 2 and 4 bits as bytes (`tflgpu.tflite.narrow`)."""

    NUMBERS = "It computes on the numbers; results of fewer bits are the operands' own or none."
    CLAMPED = "Of floats it makes the nearest whole number that the result's type holds."
    BITS = "It looks at how elements are stored, and takes no such tensor."


def always(reason: str) -> Callable[[Node], str]:
    """`OnDevice.limits` of an op that no backend runs; "{op}" in the reason is the node's."""
    return lambda node: reason.format(op=node.op)


@frozen
class Pads:
    """Rows and columns of zeros around an image."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def __add__(self, other: Pads) -> Pads:
        return Pads(
            self.top + other.top,
            self.bottom + other.bottom,
            self.left + other.left,
            self.right + other.right,
        )


def no_zeros(node: Node) -> Pads:
    """`Filter.zeros` of an op that never reads beyond its data."""
    return Pads()


@frozen
class Filter:
    """Which operand is what, of an op whose results are sums of data times a filter.

    It promises that the op is linear in its filter, and that the bias is added to every sum, before
    any fused activation. So a number per channel that the result is multiplied by can move into
    filter and bias.

    Attributes:
        source: Operand with the data.
        weights: Operand with the filter.
        bias: Operand with a number per output channel; may be absent.
        out: Axis of the filter along which output channels run. The other axes are what is summed.
        spread: Filter and number of input channels -> how numbers of input channels (the last axis
            of the data) lie over the filter; None where these do not fit. Without it nothing is
            folded that comes before the op.
        zeros: The zeros around an image that the op's sums take in. Without it a number that is
            added before the op is not folded, since those zeros would miss it.
        pads: The attribute that takes a `Pads` in place of a padding of the file, None where it is
            not set; so a border of zeros before the op can move into it. "" = there is none.
    """

    source: int = 0
    weights: int = 1
    bias: int = 2
    out: int = 0
    spread: Callable[[Array, int], Spread | None] | None = None
    zeros: Callable[[Node], Pads] | None = None
    pads: str = ""


@frozen
class Reordered:
    """What a node has to become to do the same on an operand in another order of dimensions.

    Attributes:
        attributes: Its attributes.
        constants: New contents of constant operands, by position. The others stay.
    """

    attributes: Any
    constants: Mapping[int, Array] = field(factory=dict)


@frozen
class Items:
    """A batch of which a node is to compute several items, as it computes one.

    A tensor has its items one after another along axis 0: an operand of shape [3, 5] of each of 8
    items is one of shape [24, 5].

    Attributes:
        count: How many.
        operands: Positions of the operands that are of each item. The others are the same for all.
    """

    count: int
    operands: frozenset[int]

    def wide(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor of all items, of which that of one has this one: scalars are a
        vector."""
        return (shape[0] * self.count, *shape[1:]) if shape else (self.count,)

    def times(self, array: Array) -> Array:
        """The same contents for each item."""
        return np.concatenate([array] * self.count, axis=0)


@frozen
class Batched:
    """What a node has to become to compute several items, so that its results have them one after
    another along axis 0.

    Attributes:
        attributes: Its attributes.
        constants: New contents of constant operands, by position. The others stay.
        op: The op that takes its place; "" for its own.
        operands: Positions of the operands that such an op gets; None for all.
        shapes: Shapes that operands of each item are given before it, by position. Its results,
            which have as many elements as those of all items and in the same order, get theirs
            behind it.
        columns: Constants that come before an operand along its last axis, by position, as the
            operand is shaped in ``shapes``.
        mixed: Whether it takes and gives rows of axis 0 by turns: the first one of each item, then
            the second one of each, and so on. They are brought into this order, and out of it.
    """

    attributes: Any
    constants: Mapping[int, Array] = field(factory=dict)
    op: str = ""
    operands: tuple[int, ...] | None = None
    shapes: Mapping[int, tuple[int, ...]] = field(factory=dict)
    columns: Mapping[int, Array] = field(factory=dict)
    mixed: bool = False


@frozen
class Work:
    """Floating-point operations (a multiply-add is two) and bytes read and written."""

    flops: int = 0
    nbytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)

    @classmethod
    def of(cls, node: Node, flops: int | None = None) -> Work:
        """All operands are read and all results written; without ``flops``, one operation for each
        element of the largest of these."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        nbytes = sum(v.elements * max(1, v.dtype.itemsize) for v in values)
        if flops is None:
            flops = max((v.elements for v in values), default=0)
        return cls(flops, nbytes)


def copies_only(node: Node) -> int | None:
    """`Movement.copies` of an op that joins its operands: of a single one it makes a copy."""
    return 0 if len(node.inputs) == 1 else None


def copies_first(node: Node) -> int:
    """`Movement.copies` of an op whose result is operand 0, wherever they have equally many
    elements of one type."""
    return 0
