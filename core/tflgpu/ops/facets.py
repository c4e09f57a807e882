"""Facets: what others ask about an op besides its results.

A pass, an estimate or a report never looks at an op's name. It asks the op's definition, and a
plugin's op answers as a shipped one does. An op with nothing to say sets none of these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node

#: From a number per input channel to numbers that broadcast against a filter.
Spread = Callable[[Array], Array]


class NarrowTypes(enum.Enum):
    """What an op does with tensors whose type a graph holds as another: bf16 as f32, whole numbers
    of 2 and 4 bits as bytes (`tflgpu.tflite.narrow`)."""

    NUMBERS = "It computes on the numbers; results of fewer bits are the operands' own or none."
    CLAMPED = "Of floats it makes the nearest whole number that the result's type holds."
    BITS = "It looks at how elements are stored, and takes no such tensor."


@attrs.frozen
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


@attrs.frozen
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


class Rounding(enum.Enum):
    """Where 0 lies among the 8-bit steps to which a row of data is rounded while the model runs:
    in the middle, or where the row's range wants it (`tflgpu.ops.quantize_on_the_fly`)."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
    #: The same with halves to the even number, for which XNNPACK decides.
    EVEN = "even"


@attrs.frozen
class OnTheFly:
    """An operand that is rounded so before it is multiplied.

    Attributes:
        axes: Those of ``shape`` that have one range together.
        rounding: To which steps.
        shape: What the operand is reshaped to before, where its own shape does not show the rows.
        operand: Position of the data.
    """

    axes: tuple[int, ...]
    rounding: Rounding
    shape: tuple[int, ...] | None = None
    operand: int = 0


@attrs.frozen
class Hybrid:
    """What TFLite's kernel of an op rounds where its data are floats and its weights 8-bit numbers.

    Attributes:
        data: Operands.
        attributes: The node's, which say that what it multiplies inside is rounded too; None where
            there is nothing inside.
    """

    data: tuple[OnTheFly, ...]
    attributes: Any = None


@attrs.frozen
class Reordered:
    """What a node has to become to do the same on an operand in another order of dimensions.

    Attributes:
        attributes: Its attributes.
        constants: New contents of constant operands, by position. The others stay.
    """

    attributes: Any
    constants: Mapping[int, Array] = attrs.Factory(dict)


@attrs.frozen
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


@attrs.frozen
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
        mixed: Whether it takes and gives rows of axis 0 by turns: the first one of each item, then
            the second one of each, and so on. They are brought into this order, and out of it.
    """

    attributes: Any
    constants: Mapping[int, Array] = attrs.Factory(dict)
    op: str = ""
    operands: tuple[int, ...] | None = None
    shapes: Mapping[int, tuple[int, ...]] = attrs.Factory(dict)
    mixed: bool = False


@attrs.frozen
class Integers:
    """Says that an op computes, on the stored numbers of quantized tensors, what another op
    computes on the real numbers that they stand for.

    Such an op can take the place of the other, with the same operands and results, where options
    ask for integer numerics and a device has a kernel for it (`tflgpu.compiler.numerics`).

    Attributes:
        op: The other op.
        attributes: A node of the other op, on quantized tensors -> the attributes of the node that
            takes its place; or a string, the reason why none can.
    """

    op: str
    attributes: Callable[[Node], Any]


@attrs.frozen
class Replacement:
    """What takes a node's place.

    Attributes:
        op: Its op.
        attributes: Its attributes.
        constants: Operands that it has behind the node's.
        replaced: Real numbers in the place of the node's own constants, by position.
    """

    op: str
    attributes: Any
    constants: tuple[Array, ...] = ()
    replaced: Mapping[int, Array] = attrs.Factory(dict)


@attrs.frozen
class PostOp:
    """What rounds a node's one result, behind it, where that is not rounded to the nearest step.

    Attributes:
        op: Its op, elementwise, of one operand.
        attributes: Its attributes.
    """

    op: str
    attributes: Any


@attrs.frozen
class InDigits:
    """How sums of products of stored numbers come out to the last bit: by the op itself, on digits
    of its data (`tflgpu.ops.stored_digit`), which are short enough for f32, and `STORED_SUMS`
    behind it.

    Attributes:
        attributes: The node's, for sums without an activation.
        split: Positions of data, each with its number of digits.
        bits: Of a digit.
        constants: Whole numbers in f32 in the place of constant operands.
        dropped: How many operands at the end are left out: a bias, which is in the table.
        finish: The attributes of STORED_SUMS without exponents -> with them.
        table: Its last operand.
    """

    attributes: Any
    split: Mapping[int, int]
    bits: int
    constants: Mapping[int, Array]
    dropped: int
    finish: Callable[[tuple[int, ...]], Any]
    table: Array


@attrs.frozen
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
    """`OpDef.copies` of an op that joins its operands: of a single one it makes a copy."""
    return 0 if len(node.inputs) == 1 else None


def copies_first(node: Node) -> int:
    """`OpDef.copies` of an op whose result is operand 0, wherever they have equally many elements
    of one type."""
    return 0
