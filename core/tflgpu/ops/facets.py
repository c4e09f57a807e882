"""Facets: what others ask about an op besides its results.

A pass, an estimate or a report never looks at an op's name. It asks the op's definition, and a
plugin's op answers as a shipped one does. An op with nothing to say sets none of these.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops.affine import Affine
from tflgpu.ops.fields import Activation, Fields
from tflgpu.ops.moves import Moves, whole
from tflgpu.ops.operand import Operands
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


@frozen
class Reading:
    """What a composite may mean: a node of the op with these ``attributes``, on those of the
    composite's operands that ``operands`` lists, in the op's order (None = all of them)."""

    attributes: Any
    operands: tuple[int, ...] | None = None


@frozen
class Composed:
    """Which composites of a file (STABLEHLO_COMPOSITE) an op computes as one.

    What a name and attributes mean is only agreed upon, and the operators that the file has for the
    composite are the definition. So each reading is tried against these, on drawn numbers, before a
    node of the op takes their place (`tflgpu.compiler.composites`).

    Attributes:
        names: Such as "odml.rms_norm". Several ops may have one name.
        read: The composite's attributes and operands -> every reading of them, likely ones first.
            Raises `ModelError` or `UnsupportedError`, with the reason, where there is none.
        attributes: Names of the attributes that ``read`` understands; with any other the operators
            run.
        draw: Numbers of a trial, None for an operand that is not needed, from a generator and the
            operands; None: floats in [-3, 3), whole numbers from 0 to 2, booleans, and what
            constants hold.
        max_version: Newest version of the composites.
    """

    names: tuple[str, ...]
    read: Callable[[Fields, Operands], Sequence[Reading]]
    attributes: frozenset[str] = frozenset()
    draw: Callable[[np.random.Generator, Operands], list[Array | None]] | None = None
    max_version: int = 1


def _no_limits(node: Node) -> str | None:
    return None


@frozen
class FileForm:
    """How do files have the op, and what of it do they leave to the reader?

    Attributes:
        max_version: Highest TFLite op version understood.
        composed: Which composites of a file it computes as one.
        result_type: The type of all results, where TFLite's kernel gives it to them whatever the
            file says (`tflgpu.tflite.result_types`): a type, the position of the operand that has
            it, or the name of the option that says it; None: the file has to say the type that the
            op makes.
        refit: Attributes, operands and whether inputs of the model have other shapes than the
            file's -> new contents for constants of the file, by position, that say what those
            shapes decide.
        at_run_time: Attributes -> those of a node where an operand that decides on its shape is no
            constant, of which TFLite makes something else then; None: the same.
    """

    max_version: int = 1
    composed: tuple[Composed, ...] = ()
    result_type: DType | int | str | None = None
    refit: Callable[[Any, Operands, bool], dict[int, Array]] | None = None
    at_run_time: Callable[[Any], Any] | None = None


@frozen
class Contents:
    """What do the op's tensors hold, and on what of it do its results depend?

    Attributes:
        texts: Whether it takes or makes tensors of texts (strings), as arrays of ``bytes``, and
            runs on the host by its reference then; others refuse them.
        counts: Positions of operands that are counts of elements: whole numbers, even where the
            file gives them a scale.
        settings: Positions of operands that say what is done, and not to what (a threshold), so
            that tests leave them as samples have them.
        indices: Positions of operands that are indices, or limited to them: a number of 64 bits
            that 32 do not hold does what any other one outside does.
        positions: The attribute that holds the type of all results, which are positions in an
            operand: i64 or i32. "" = there is none.
        held: What becomes of tensors whose type a graph holds as another (4 bits as bytes, bf16 as
            f32).
        shape_only: Whether results depend on the operands' shapes alone, never on contents, so
            that they are constants although the operands are not.
        zeros_where: Node -> whether TFLite's kernel only fills its results with zeros (of quantized
            tensors, stored ones), so that they are constants.
    """

    texts: bool = False
    counts: tuple[int, ...] = ()
    settings: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    positions: str = ""
    held: NarrowTypes = NarrowTypes.NUMBERS
    shape_only: bool = False
    zeros_where: Callable[[Node], bool] | None = None


@frozen
class OnDevice:
    """What does a device do with the op, and what can it not?

    Attributes:
        limits: A reason why no backend can run this node (None = none). Backends add theirs.
        checked: Positions of operands of whole numbers, some of which the reference refuses while
            the model runs, by an `InputError`: indices outside, divisors of 0. A kernel cannot.
        largest_operand: The largest magnitude of an operand of which devices promise a result.
        work: Node -> an estimate of what it computes and moves; None = the multiply-adds of its
            filter.
    """

    limits: Callable[[Node], str | None] = _no_limits
    checked: tuple[int, ...] = ()
    largest_operand: float = math.inf
    work: Callable[[Node], Work | None] | None = None


@frozen
class Movement:
    """Which elements of its operands are the elements of the op's one result, before any fused
    activation?

    Attributes:
        is_view: A row-major reinterpretation of operand 0; where bytes allow it no kernel runs.
        moves: Node -> which element of an operand each element of the result is; None where no
            regular step tells.
        copies: Node -> position of the operand whose elements the result has, in row-major order;
            None where there is none, or where that depends on contents not known. It counts only
            where the two have the same number of elements and type, so an op that may also add or
            repeat elements need not look.
        keeps_values: Whether each element of a result is an element of an operand, or 0: between
            tensors of one quantization there is nothing to round.
        reorder: Node and an order of axes -> what computes, of operand 0 transposed by it, the
            result transposed by it; None where nothing does. An elementwise op need not say.
    """

    is_view: bool = False
    moves: Callable[[Node], Moves | None] | None = attrs.Factory(
        lambda self: whole if self.is_view else None, takes_self=True
    )
    copies: Callable[[Node], int | None] | None = None
    keeps_values: bool = attrs.Factory(lambda self: self.moves is not None, takes_self=True)
    reorder: Callable[[Node, tuple[int, ...]], Reordered | None] | None = None


@frozen
class Arithmetic:
    """Which of the arithmetic that passes know is the op's: a filter, a factor and a term per
    channel, an activation?

    Attributes:
        filter: Which operand is what, where the op sums products of data with a filter.
        affine: Node -> ``scale * x + shift`` per channel, which it computes before any fused
            activation; None where it does not.
        activation_field: The attribute that holds a fused `Activation`, applied to the one result.
            The op computes all of them but SIGN_BIT, whatever of them a file can ask for.
        computes: The activation that the op itself is, of operand 0.
    """

    filter: Filter | None = None
    affine: Callable[[Node], Affine | None] | None = None
    activation_field: str = ""
    computes: Activation = Activation.NONE


@frozen
class Variables:
    """What does the op keep between runs?

    Attributes:
        operands: Attributes -> positions of the operands that are its state: each a variable of its
            own, whose new contents the reference gives. None: any operand may be a variable.
    """

    operands: Callable[[Any], tuple[int, ...]] | None = None
