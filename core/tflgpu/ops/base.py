"""What an op is: one definition that the reader, partitioner, reference, tests and docs read.

An op family is a module in `tflgpu.ops` with a module-level ``OPS`` tuple of `OpDef`. Nothing
else lists ops: the registry finds the modules by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import DynamicError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.affine import Affine
from tflgpu.ops.facets import (
    Batched,
    Filter,
    Hybrid,
    InDigits,
    Integers,
    Items,
    NarrowTypes,
    Reordered,
    Work,
)
from tflgpu.ops.fields import Activation, Fields, Padding
from tflgpu.ops.items import elementwise
from tflgpu.ops.moves import Moves, whole
from tflgpu.ops.samples import Accuracy, Arg, Draw, Sample

__all__ = [
    "Accuracy", "Activation", "Arg", "Composed", "Draw", "Fields", "Infer", "NoAttrs", "OpDef",
    "Operand",
    "Padding", "Reading", "Reference", "Sample", "no_attrs",
]  # fmt: skip


@attrs.frozen
class Operand:
    """An operand as shape inference sees it: its spec, and its contents where constant."""

    spec: TensorSpec
    data: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.spec.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    def const(self, op: str, what: str) -> Array:
        """Its contents.

        Raises:
            DynamicError: they are not known before the model runs.
        """
        if self.data is None:
            raise DynamicError(f"{op}: {what} must be a constant")
        return self.data


@attrs.frozen
class Reading:
    """What a composite may mean: a node of the op with these ``attributes``, on those of the
    composite's operands that ``operands`` lists, in the op's order (None = all of them)."""

    attributes: Any
    operands: tuple[int, ...] | None = None


@attrs.frozen
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
    read: Callable[[Fields, Sequence[Operand | None]], Sequence[Reading]]
    attributes: frozenset[str] = frozenset()
    draw: Callable[[np.random.Generator, Sequence[Operand | None]], list[Array | None]] | None = (
        None
    )
    max_version: int = 1


Infer = Callable[[Any, Sequence[Operand | None]], list[TensorSpec]]
Reference = Callable[[Any, Sequence[Array | None]], list[Array]]


def _no_limits(node: Node) -> str | None:
    return None


@attrs.frozen
class OpDef:
    """One op, completely.

    Attributes:
        name: TFLite's builtin name ("CONV_2D") or the custom op's code.
        parse: Option fields -> frozen attribute value.
        infer: Attributes and operands -> specs of the outputs. Raises `ModelError` for
            operands that no version of the op takes, naming the operand, and
            `UnsupportedError` for what is right but beyond tflgpu.
        reference: Attributes and arrays -> output arrays, in NumPy, computing in the operands'
            own precision (f16 through f32). The definition that every backend is held to, and
            what runs on the CPU. Must not write into its inputs. A stateful op's gives the
            outputs followed by the new contents of each variable operand, in operand order.
        samples: Test cases, with odd sizes; checked against LiteRT and on every backend.
        accuracy: Tolerance class of its results.
        max_version: Highest TFLite op version understood.
        limits: A reason why no backend can run this node (None = none). Backends add theirs.
        elementwise: Whether each output element depends only on the same (broadcast) element
            of each operand.
        elementwise_where: Node -> the same, of an op that pairs elements in another way in some
            nodes; None = ``elementwise`` says it of all. Ask `is_elementwise`.
        is_custom: Whether the name is a custom op's code.
        stateful: Whether it keeps variables between runs.
        states: Attributes -> positions of the operands that are its state: each a variable of its
            own, whose new contents the reference gives. Without it a stateful op may have any
            operand as a variable.
        is_view: A row-major reinterpretation of operand 0; where bytes allow it no kernel runs.
        texts: Whether it takes or makes tensors of texts (strings), as arrays of ``bytes``, and
            runs on the host by its reference then; others refuse them.
        shape_only: Whether results depend on the operands' shapes alone, never on contents, so
            that they are constants although the operands are not.
        zeros_where: Node -> whether TFLite's kernel only fills its results with zeros (of quantized
            tensors, stored ones), so that they are constants.
        generate: Draws a random sample, for the conformance suite; without it the suite resizes
            the samples, which is enough where operands of any size fit together.
        filter: Which operand is what, where the op sums products of data with a filter.
        activation_field: The attribute that holds a fused `Activation`, applied to the one result.
            The op computes all of them that a file can ask for but SIGN_BIT.
        computes: The activation that the op itself is, of operand 0.
        affine: Node -> ``scale * x + shift`` per channel, which it computes before any fused
            activation; None where it does not.
        moves: Node -> which element of an operand each element of the one result is, before any
            fused activation; None where no regular step tells.
        copies: Node -> position of the operand whose elements the one result has, in row-major
            order, before any fused activation; None where there is none, or where that depends on
            contents not known. It counts only where the two have the same number of elements and
            type, so an op that may also add or repeat elements need not look.
        keeps_values: Whether each element of a result is an element of an operand, or 0, before any
            fused activation: between tensors of one quantization there is nothing to round.
        one_scale: Whether TFLite's kernels take the stored numbers of quantized operands for
            numbers on the result's scale, even where the file gives them others: most that only
            move elements do, and the file format asks for equal scales there.
        one_scale_of: Types of which that is so where it is not of all.
        reorder: Node and an order of axes -> what computes, of operand 0 transposed by it, the
            result transposed by it; None where nothing does. An elementwise op need not say.
        takes_stored: Whether it reads and writes the stored numbers of quantized tensors as they
            are. Any other op sees real numbers instead.
        stored_where: Attributes -> the same, of an op that does so with some attributes only; None
            = ``takes_stored`` says it of all. Ask `on_stored`.
        integers: Which op it stands for where quantized tensors are computed on as they are stored;
            such an op ``takes_stored``.
        hybrid: Node with float data and 8-bit weights -> what TFLite's kernel rounds before it
            multiplies. Without it the weights become real numbers, and nothing is rounded.
        int16_table: Node with one operand and one result, quantized in 16 bits -> what TFLite's
            kernel stores for each stored operand from -32768 on (`tflgpu.ops.int16_tables`); None
            where it rounds the true result.
        as_stored: Node on quantized operands of simple scales -> its attributes where it computes,
            of their real numbers, those that TFLite's kernel makes of the stored ones, so that
            nothing rounds them afterwards, or a `Replacement` by a node that does, or what rounds
            its result (`PostOp`); None where that is the true result, rounded.
        in_digits: Node on quantized operands -> how its sums come out to the last bit, where they
            are too long for f32 (`InDigits`); None where they do not, or need not.
        counts: Positions of operands that are counts of elements: whole numbers, even where the
            file gives them a scale.
        settings: Positions of operands that say what is done, and not to what (a threshold), so
            that tests leave them as samples have them.
        indices: Positions of operands that are indices, or limited to them: a number of 64 bits
            that 32 do not hold does what any other one outside does.
        positions: The attribute that holds the type of all results, which are positions in an
            operand: i64 or i32. "" = there is none.
        result_type: The type of all results, where TFLite's kernel gives it to them whatever the
            file says (`tflgpu.tflite.result_types`): a type, the position of the operand that has
            it, or the name of the option that says it; None: the file has to say the type that the
            op makes.
        checked: Positions of operands of whole numbers, some of which the reference refuses while
            the model runs, by an `InputError`: indices outside, divisors of 0. A kernel cannot.
        largest_operand: The largest magnitude of an operand of which devices promise a result.
        held: What becomes of tensors whose type a graph holds as another (4 bits as bytes, bf16 as
            f32).
        work: Node -> an estimate of what it computes and moves; None = the multiply-adds of its
            filter.
        batch: Node and items -> what it has to become to compute several items at once, each as it
            would alone (`Items`); or the reason why it cannot. None = it does not say, so that a
            model with such a node is not run in batches. An elementwise op need not say.
        composed: Which composites of a file it computes as one.
        refit: Attributes, operands and whether inputs of the model have other shapes than the
            file's -> new contents for constants of the file, by position, that say what those
            shapes decide.
        at_run_time: Attributes -> those of a node where an operand that decides on its shape is no
            constant, of which TFLite makes something else then; None: the same.
        owner: The plugin that brought it, "" for a shipped one. The registry fills it in.
    """

    name: str
    parse: Callable[[Fields], Any]
    infer: Infer
    reference: Reference
    samples: Callable[[], Sequence[Sample]]
    accuracy: Accuracy = Accuracy.ROUNDED
    max_version: int = 1
    limits: Callable[[Node], str | None] = _no_limits
    elementwise: bool = False
    elementwise_where: Callable[[Node], bool] | None = None
    is_custom: bool = False
    stateful: bool = False
    states: Callable[[Any], tuple[int, ...]] | None = None
    is_view: bool = False
    texts: bool = False
    shape_only: bool = False
    zeros_where: Callable[[Node], bool] | None = None
    generate: Callable[[Draw], Sample] | None = None
    filter: Filter | None = None
    activation_field: str = ""
    computes: Activation = Activation.NONE
    affine: Callable[[Node], Affine | None] | None = None
    moves: Callable[[Node], Moves | None] | None = attrs.Factory(
        lambda self: whole if self.is_view else None, takes_self=True
    )
    copies: Callable[[Node], int | None] | None = None
    keeps_values: bool = attrs.Factory(lambda self: self.moves is not None, takes_self=True)
    one_scale: bool = attrs.Factory(lambda self: self.keeps_values, takes_self=True)
    one_scale_of: frozenset[DType] = frozenset()
    reorder: Callable[[Node, tuple[int, ...]], Reordered | None] | None = None
    takes_stored: bool = False
    stored_where: Callable[[Any], bool] | None = None
    integers: Integers | None = None
    hybrid: Callable[[Node], Hybrid] | None = None
    int16_table: Callable[[Node], Array | None] | None = None
    as_stored: Callable[[Node], Any] | None = None
    in_digits: Callable[[Node], InDigits | None] | None = None
    counts: tuple[int, ...] = ()
    settings: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    positions: str = ""
    result_type: DType | int | str | None = None
    checked: tuple[int, ...] = ()
    largest_operand: float = math.inf
    held: NarrowTypes = NarrowTypes.NUMBERS
    work: Callable[[Node], Work | None] | None = None
    batch: Callable[[Node, Items], Batched | str] | None = attrs.Factory(
        lambda self: elementwise if self.elementwise else None, takes_self=True
    )
    composed: tuple[Composed, ...] = ()
    refit: Callable[[Any, Sequence[Operand | None], bool], dict[int, Array]] | None = None
    at_run_time: Callable[[Any], Any] | None = None
    owner: str = attrs.field(default="", eq=False)

    def must_know(self, attributes: Any, operands: Sequence[Operand | None]) -> tuple[int, ...]:
        """Positions of the constants whose contents shape inference needs, so that they must be
        known before the model runs (RESHAPE's shape, SLICE's box): each is withheld in turn."""
        needed = []
        for index, operand in enumerate(operands):
            if operand is None or operand.data is None:
                continue
            try:
                self.infer(
                    attributes, [*operands[:index], Operand(operand.spec), *operands[index + 1 :]]
                )
            except DynamicError:
                needed.append(index)
        return tuple(needed)

    def on_stored(self, attributes: Any) -> bool:
        """Whether a node with such attributes reads and writes stored numbers as they are."""
        if self.takes_stored or self.stored_where is None:
            return self.takes_stored
        return self.stored_where(attributes)

    def is_elementwise(self, node: Node) -> bool:
        """Whether each element of a node's result depends only on the same (broadcast) element of
        each operand."""
        if not self.elementwise or self.elementwise_where is None:
            return self.elementwise
        return self.elementwise_where(node)

    def activation_of(self, node: Node) -> Activation:
        """The activation fused into a node of this op."""
        if not self.activation_field:
            return Activation.NONE
        found = getattr(node.attrs, self.activation_field)
        assert isinstance(found, Activation)
        return found


@attrs.frozen
class NoAttrs:
    """The attributes of an op that has none."""


def no_attrs(fields: Fields) -> NoAttrs:
    """`OpDef.parse` of an op without options."""
    return NoAttrs()
