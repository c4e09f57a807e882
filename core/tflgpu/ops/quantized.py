"""What an op is where its tensors are quantized: `OpDef.quantized`.

The float view, the choice of numerics, the partitioner and the kernels ask here, and nowhere else.
There are three answers, of which an op may have several, for different nodes:

* In real numbers, which is what an op does that says nothing: the reference computes on what the
  stored numbers stand for, and each result is rounded to the nearest step of its tensor.
* On the stored numbers as they are (`Quantized.stored`): moves, comparisons and operators whose
  reference has a form for them.
* As TFLite's reference kernels compute, to the last bit: from a table, on digits of the data, by
  what rounds the result in another way, or as an op of its own (`Integers`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.values import frozen

_STORED = frozenset({DType.I8, DType.U8, DType.I16})
_F32 = np.finfo(np.float32)
_TINY, _HUGE = float(_F32.tiny), float(_F32.max)


def is_divisor(scale: float) -> bool:
    """Whether numbers can be counted in steps of ``scale``: it is no smaller than the smallest
    normal f32, below which inverses overflow and devices may take a number for 0."""
    return scale >= _TINY


def is_quantized(value: Value) -> bool:
    """Whether a tensor holds 8- or 16-bit numbers that stand for real ones."""
    return value.quant is not None and value.dtype in _STORED


def is_in_blocks(value: Value | None) -> bool:
    """Whether a constant has blocks of 4-bit numbers along its last axis, each with a scale."""
    held = None if value is None else value.contents
    return isinstance(held, StoredReals) and isinstance(held.quantization, BlockScales)


def is_simple(value: Value) -> bool:
    """Whether a tensor has one scale, with which f32 can count its steps: neither 0 nor so small
    that its inverse overflows, nor so large that the stored numbers do."""
    if value.quant is None or value.quant.per_axis:
        return False
    (scale,), (zero,), info = value.quant.scale, value.quant.zero_point, np.iinfo(value.dtype.numpy)
    return is_divisor(scale) and scale * max(zero - int(info.min), int(info.max) - zero) < _HUGE


class Rounding(enum.Enum):
    """Where 0 lies among the 8-bit steps to which a row of data is rounded while the model runs:
    in the middle, or where the row's range wants it (`tflgpu.ops.quantize_on_the_fly`)."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
    #: The same with halves to the even number, for which XNNPACK decides.
    EVEN = "even"


@frozen
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


@frozen
class Hybrid:
    """What TFLite's kernel of an op rounds where its data are floats and its weights 8-bit numbers.

    Attributes:
        data: Operands.
        attributes: The node's, which say that what it multiplies inside is rounded too; None where
            there is nothing inside.
    """

    data: tuple[OnTheFly, ...]
    attributes: Any = None


@frozen
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


@frozen
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


@frozen
class PostOp:
    """What rounds a node's one result, behind it, where that is not rounded to the nearest step.

    Attributes:
        op: Its op, elementwise, of one operand.
        attributes: Its attributes.
    """

    op: str
    attributes: Any


@frozen
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


@frozen(eq=False)
class StoredTable:
    """What is stored for each stored operand of 16 bits, from -32768 on."""

    entries: Array


class Numbers(enum.Enum):
    """The numbers on which a node with quantized tensors is computed by its op itself."""

    REAL = "what the stored ones stand for; each result is rounded"
    STORED = "the stored ones, as they are"


@frozen
class Quantized:
    """Which numbers does an op compute on where its tensors are quantized, and how does a result
    come out?

    Attributes:
        stored: Whether it reads and writes the stored numbers of quantized tensors as they are; a
            function of its attributes where it does so with some only. Ask `on_stored`.
        one_scale: Whether TFLite's kernels take the stored numbers of quantized operands for
            numbers on the result's scale, even where the file gives them others; or the types of
            which that is so. None: where it only moves elements (`Movement.keeps_values`), since
            the file format asks for equal scales there. Ask `OpDef.has_one_scale`.
        table: Node with one operand and one result, quantized in 16 bits -> what TFLite's kernel
            stores for each stored operand from -32768 on (`tflgpu.ops.int16_tables`); None where it
            rounds the true result.
        digits: Node on quantized operands -> how its sums come out to the last bit, where they are
            too long for f32; None where they do not, or need not.
        results: Node on quantized operands of simple scales -> its attributes where it computes, of
            their real numbers, those that TFLite's kernel makes of the stored ones, so that nothing
            rounds them afterwards, or a `Replacement` by a node that does, or what rounds its
            result (`PostOp`); None where that is the true result, rounded. Ask `results_of`.
        hybrid: Node with float data and 8-bit weights -> what TFLite's kernel rounds before it
            multiplies. Without it the weights become real numbers, and nothing is rounded.
        integers: Which op it stands for where quantized tensors are computed on as they are stored;
            such an op is on stored numbers always.
    """

    stored: bool | Callable[[Any], bool] = False
    one_scale: bool | frozenset[DType] | None = None
    table: Callable[[Node], Array | None] | None = None
    digits: Callable[[Node], InDigits | None] | None = None
    results: Callable[[Node], Any] | None = None
    hybrid: Callable[[Node], Hybrid] | None = None
    integers: Integers | None = None

    def on_stored(self, attributes: Any) -> bool:
        """Whether a node with such attributes reads and writes stored numbers as they are."""
        return self.stored(attributes) if callable(self.stored) else self.stored

    def way(self, node: Node) -> StoredTable | InDigits | Numbers:
        """How a node is computed: the first of what the reference kernels do to the last bit, then
        the stored numbers, then real ones, whose results `results_of` knows more of."""
        x = node.optional_input(0)
        if self.table is not None and x is not None:
            (out,) = node.outputs
            if all(v.dtype is DType.I16 and is_quantized(v) and is_simple(v) for v in (x, out)):
                entries = self.table(node)
                if entries is not None:
                    return StoredTable(entries)
        digits = None if self.digits is None else self.digits(node)
        if digits is not None:
            return digits
        return Numbers.STORED if self.on_stored(node.attrs) else Numbers.REAL

    def results_of(self, node: Node) -> Any:
        """What ``results`` says of a node in real numbers; None where each result is the true one,
        rounded, as it is wherever a tensor is not quantized or has no simple scale."""
        if self.results is None:
            return None
        given = [v for v in node.inputs if v is not None and (v.quant or v.contents is None)]
        made = [v for v in node.outputs if is_quantized(v)]
        if not all(map(is_quantized, given)) or not all(map(is_simple, given + made)):
            return None
        try:
            return self.results(node)
        except ModelError:  # its numbers are out of reach of whole ones
            return None
