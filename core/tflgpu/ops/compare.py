"""Comparisons, logic, and choosing by a condition.

TFLite versions: EQUAL 1-5; NOT_EQUAL 1-4; LESS, GREATER_EQUAL 1-3; GREATER, LESS_EQUAL 1-2; SELECT
1-4; SELECT_V2 1-2; the others 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import (
    FLOATS,
    QUANTIZED,
    WHOLE,
    broadcast_shape,
    check_unscaled,
    infer_broadcast,
    infer_unary,
)
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.fixed_point import Multiplier, times
from tflgpu.ops.items import as_they_are, elementwise
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize, steps_of
from tflgpu.values import frozen

_BOOL = frozenset({DType.BOOL})
_SCALED = frozenset({DType.I8, DType.U8, DType.I16})
_EQUALITIES = frozenset({"EQUAL", "NOT_EQUAL"})
_NUMBERS = FLOATS | WHOLE | QUANTIZED
_ANY = _NUMBERS | _BOOL
_TEXTS = frozenset({DType.STRING})
#: What TFLite compares without a scale, save for NOT_EQUAL, which takes it for quantized.
_PLAIN = frozenset({DType.I16})


#: By how many bits TFLite shifts stored numbers to the left before it multiplies them by their
#: scale.
PARTS = 8


@frozen
class InParts:
    """The attributes of a comparison of quantized tensors. TFLite's kernels compare whole numbers
    of 256ths of 1, so that what is closer is equal; but which of two numbers of 16 bits is larger
    they see by the stored ones, without their scales. No file has it.

    Attributes:
        left: What the first operand is stored as.
        right: What the second is stored as.
        factors: Their scales; none where the stored numbers are compared.

    Source: TFLite's `kernels/internal/reference/comparisons.h` (ComparisonWithScaling),
    `kernels/comparisons.cc`.
    """

    left: QuantizeAndDequantize
    right: QuantizeAndDequantize
    factors: tuple[Multiplier, ...] = ()


def _in_parts(node: Node) -> InParts | None:
    values = node.input(0), node.input(1)
    quants = [v.quant for v in values if v.quant is not None and v.dtype in _SCALED]
    if len(quants) < 2 or values[0].dtype is not values[1].dtype:
        return None
    left, right = (QuantizeAndDequantize.of(q, values[0].dtype) for q in quants)
    if values[0].dtype is DType.I16 and node.op not in _EQUALITIES:
        return InParts(left, right)
    # Of scales that are not below 1 its arithmetic means nothing: it shifts by a negative number of
    # bits.
    factors = tuple(Multiplier.of(float(np.float32(q.scale[0]))) for q in quants)
    return None if any(f.shift > 0 for f in factors) else InParts(left, right, factors)


def _whole(attributes: InParts, x: Array, y: Array) -> tuple[Array, Array]:
    a, b = (
        steps_of(stored, real).astype(np.int64)
        for stored, real in ((attributes.left, x), (attributes.right, y))
    )
    if not attributes.factors:
        return a, b
    left, right = attributes.factors
    return times(a << PARTS, left), times(b << PARTS, right)


def _reference(op: str, fn: Callable[[Array, Array], Any]) -> Callable[..., list[Array]]:
    def reference(attributes: NoAttrs | InParts, arrays: Arrays) -> list[Array]:
        a, b = (present(x) for x in arrays)
        if isinstance(attributes, InParts):
            a, b = _whole(attributes, a, b)
        check_unscaled(op, a, frozenset() if op == "NOT_EQUAL" else _PLAIN)
        return [np.asarray(fn(a, b), np.bool_)]

    return reference


def condition_shape(cond: Shape, x: Shape, y: Shape, *, version2: bool) -> Shape:
    """How a condition is read: NumPy broadcasting, save that SELECT's vector of as many
    elements as ``x`` has rows chooses whole rows."""
    rows = not version2 and len(cond) == 1 and len(x) > 1 and x == y and cond[0] == x[0]
    return (*cond, *(1,) * (len(x) - 1)) if rows else cond


def chooses_rows(node: Node) -> bool:
    """Whether a SELECT's condition speaks of whole rows, which is not NumPy broadcasting."""
    cond, x, y = (node.input(i).shape for i in range(3))
    return condition_shape(cond, x, y, version2=False) != cond


def _batch_select(node: Node, items: Items) -> Batched | str:
    return as_they_are(node, items) if chooses_rows(node) else elementwise(node, items)


def _infer_select(op: str) -> Callable[..., list[TensorSpec]]:
    version2 = op == "SELECT_V2"

    def infer(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
        cond, x, y = take_operands(op, operands, 3)
        if cond.dtype is not DType.BOOL:
            raise ModelError(f"{op}: the condition is {cond.dtype.value}, not bool")
        if x.dtype is not y.dtype:
            raise ModelError(f"{op}: operands are {x.dtype.value} and {y.dtype.value}")
        if not version2 and x.shape != y.shape:
            raise ModelError(f"{op}: shapes {list(x.shape)} and {list(y.shape)} differ")
        chosen = condition_shape(cond.shape, x.shape, y.shape, version2=version2)
        return [TensorSpec(broadcast_shape(op, chosen, x.shape, y.shape), x.dtype)]

    return infer


def _select(version2: bool) -> Callable[..., list[Array]]:
    def reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
        cond, x, y = (present(a) for a in arrays)
        shape = condition_shape(cond.shape, x.shape, y.shape, version2=version2)
        return [np.asarray(np.where(cond.reshape(shape), x, y))]

    return reference


def _zeros_like(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [np.zeros_like(present(arrays[0]))]


# Samples


def _pairs(dtype: DType) -> list[Sample]:
    """A small range, so that equal whole numbers meet."""

    def arg(*shape: int, const: bool = False) -> Arg:
        return Arg(shape, dtype, -2, 3, const=const)

    name = dtype.value
    return [
        Sample(f"{name}_same", {}, (arg(1, 5, 7, 3), arg(1, 5, 7, 3))),
        Sample(f"{name}_batch", {}, (arg(2, 3, 5, 8), arg(2, 3, 5, 8))),
        Sample(f"{name}_scalar", {}, (arg(3, 13), arg(const=True))),
        Sample(f"{name}_channels", {}, (arg(1, 5, 7, 6), arg(6, const=True))),
        Sample(f"{name}_left", {}, (arg(7, const=True), arg(2, 3, 7))),
        Sample(f"{name}_both", {}, (arg(5, 1), arg(1, 6))),
    ]


def _compare_samples() -> list[Sample]:
    return _pairs(DType.F32) + _pairs(DType.I32)


def _equality_samples() -> list[Sample]:
    return _compare_samples() + _pairs(DType.BOOL)[:2]


def _equal_samples() -> list[Sample]:
    wide = tuple(Arg((3, 7), DType.I16, -2, 3) for _ in range(2))
    return [*_equality_samples(), Sample("i16", {}, wide, version=5)]


def _cond(*shape: int) -> Arg:
    return Arg(shape, DType.BOOL)


def _select_samples() -> list[Sample]:
    def both(*shape: int, dtype: DType = DType.F32) -> tuple[Arg, Arg]:
        arg = Arg(shape, dtype, -9, 9)
        return arg, arg

    return [
        Sample("rank4", {}, (_cond(1, 5, 7, 3), *both(1, 5, 7, 3))),
        Sample("batch", {}, (_cond(2, 3, 5, 8), *both(2, 3, 5, 8))),
        Sample("rank2", {}, (_cond(3, 13), *both(3, 13))),
        Sample("rank1", {}, (_cond(7), *both(7))),
        Sample("scalar_cond", {}, (_cond(), *both(3, 5))),
        Sample("rows", {}, (_cond(3), *both(3, 5, 6))),
        Sample("i32", {}, (_cond(3, 5, 2), *both(3, 5, 2, dtype=DType.I32))),
        Sample("bool", {}, (_cond(3, 5), _cond(3, 5), _cond(3, 5))),
    ]


def _select_v2_samples() -> list[Sample]:
    def arg(*shape: int, const: bool = False, dtype: DType = DType.F32) -> Arg:
        return Arg(shape, dtype, -9, 9, const=const)

    return [
        Sample("same", {}, (_cond(1, 5, 7, 3), arg(1, 5, 7, 3), arg(1, 5, 7, 3))),
        Sample("batch", {}, (_cond(2, 3, 5, 8), arg(2, 3, 5, 8), arg(2, 3, 5, 8))),
        Sample("scalar_const", {}, (_cond(1, 5, 7, 3), arg(const=True), arg(1, 5, 7, 3))),
        Sample("two_scalars", {}, (_cond(1, 5, 7, 3), arg(const=True), arg(const=True))),
        Sample("per_pixel", {}, (_cond(1, 5, 7, 1), arg(1, 5, 7, 6), arg(1, 5, 7, 6))),
        Sample("channels", {}, (_cond(6), arg(2, 3, 6), arg(2, 3, 6))),
        Sample("all_differ", {}, (_cond(5, 1), arg(1, 6), arg(5, 6))),
        Sample("i32", {}, (_cond(3, 5), arg(3, 5, dtype=DType.I32), arg(3, 5, dtype=DType.I32))),
    ]


def _zeros_samples() -> list[Sample]:
    shapes = [(), (7,), (3, 13), (1, 5, 7, 3), (2, 3, 1, 5, 6)]
    return [
        *(Sample(f"rank{len(s)}", {}, (Arg(s),)) for s in shapes),
        Sample("i32", {}, (Arg((3, 5), DType.I32, -9, 9),)),
    ]


def _op(
    name: str,
    fn: Callable[[Array, Array], Any],
    allowed: frozenset[DType],
    samples: Callable[[], Sequence[Sample]],
    version: int = 1,
    texts: bool = False,
) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        infer_broadcast(name, allowed, DType.BOOL),
        _reference(name, fn),
        samples,
        accuracy=Accuracy.EXACT,
        file=FileForm(max_version=version, result_type=DType.BOOL),
        elementwise=True,
        quantized=Quantized(results=_in_parts),
        contents=Contents(texts=texts),
    )


OPS = (
    _op("EQUAL", np.equal, _ANY | _TEXTS, _equal_samples, 5, texts=True),
    _op("NOT_EQUAL", np.not_equal, _ANY | _TEXTS, _equality_samples, 4, texts=True),
    _op("LESS", np.less, _NUMBERS, _compare_samples, 3),
    _op("LESS_EQUAL", np.less_equal, _NUMBERS, _compare_samples, 2),
    _op("GREATER", np.greater, _NUMBERS, _compare_samples, 2),
    _op("GREATER_EQUAL", np.greater_equal, _NUMBERS, _compare_samples, 3),
    _op("LOGICAL_AND", np.logical_and, _BOOL, lambda: _pairs(DType.BOOL)),
    _op("LOGICAL_OR", np.logical_or, _BOOL, lambda: _pairs(DType.BOOL)),
    OpDef(
        "SELECT", no_attrs, _infer_select("SELECT"), _select(False), _select_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=4, result_type=1),
        elementwise=lambda node: not chooses_rows(node), movement=Movement(keeps_values=True),
        batch=_batch_select
    ),
    OpDef(
        "SELECT_V2", no_attrs, _infer_select("SELECT_V2"), _select(True), _select_v2_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=2, result_type=1), elementwise=True,
        movement=Movement(keeps_values=True)
    ),
    OpDef(
        "ZEROS_LIKE", no_attrs, infer_unary("ZEROS_LIKE", _ANY), _zeros_like, _zeros_samples,
        accuracy=Accuracy.EXACT, elementwise=True, movement=Movement(keeps_values=True),
        file=FileForm(result_type=0)
    ),
)  # fmt: skip
