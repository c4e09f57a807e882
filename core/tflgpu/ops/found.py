"""WHERE (TFLite versions 1-2) and UNIQUE (version 1): results whose length depends on the data.

How many there are follows from the operand's contents: where those are not constants, the shape is
known only while the model runs (`tflgpu.flow`). Neither looks at a scale.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.facets import always
from tflgpu.values import frozen

_CONDITIONS = frozenset(
    {DType.BOOL, DType.F32, DType.I8, DType.U8, DType.I32, DType.U32, DType.I64}
)
_VALUES = frozenset({DType.F32, DType.I8, DType.U8, DType.I16, DType.I32, DType.I64})


def _infer_where(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("WHERE", operands, 1)
    check_dtype("WHERE", x.dtype, _CONDITIONS)
    if x.rank < 1:
        raise ModelError("WHERE: operand 0 is a scalar; at least one dimension is needed")
    given = x.const("WHERE", "the condition (operand 0)")
    return [TensorSpec((int(np.count_nonzero(given)), x.rank), DType.I64)]


def _reference_where(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [np.argwhere(present(arrays[0])).astype(np.int64)]


@frozen
class Unique:
    """The type of the positions: i32 or i64."""

    index: DType


def _parse_unique(fields: Fields) -> Unique:
    code = fields.integer("idx_out_type", DType.I32.tflite)
    for dtype in (DType.I32, DType.I64):
        if dtype.tflite == code:
            return Unique(dtype)
    raise ModelError(f"UNIQUE: idx_out_type {code} is neither i32 nor i64")


def _uniques(x: Array) -> tuple[Array, Array]:
    """Each value once, in the order in which they first come; and which of them each element is.
    As in TFLite's kernel a NaN is like no other."""
    _, first, inverse = np.unique(x, return_index=True, return_inverse=True, equal_nan=False)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return x[first[order]], place[inverse.reshape(-1)]


def _infer_unique(attributes: Unique, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("UNIQUE", operands, 1)
    check_dtype("UNIQUE", x.dtype, _VALUES)
    need_rank("UNIQUE", x, "operand 0", 1)
    values, _ = _uniques(x.const("UNIQUE", "operand 0"))
    return [TensorSpec(values.shape, x.dtype), TensorSpec(x.shape, attributes.index)]


def _reference_unique(attributes: Unique, arrays: Arrays) -> list[Array]:
    values, places = _uniques(present(arrays[0]))
    return [values, places.astype(attributes.index.numpy)]


def _where_samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], dtype: DType = DType.BOOL) -> Sample:
        version = 1 if dtype is DType.BOOL else 2
        return Sample(id, {}, (Arg(shape, dtype, 0, 2, const=True),), version=version)

    return [
        sample("vector", (13,)),
        sample("matrix", (3, 5)),
        sample("rank4", (2, 3, 2, 5)),
        Sample("none", {}, (Arg.of([[False, False]], DType.BOOL),)),
        Sample("f32", {}, (Arg.of([0.0, -0.0, 2.5, -1.0], DType.F32),), version=2),
        sample("i32", (3, 5), DType.I32),
        sample("i64", (7,), DType.I64),
    ]


def _unique_samples() -> list[Sample]:
    def sample(id: str, dtype: DType, wide: bool = False) -> Sample:
        fields = {"idx_out_type": (DType.I64 if wide else DType.I32).tflite}
        return Sample(id, fields, (Arg.of([7, 2, 7, 1, 1, 5, 2], dtype),))

    return [
        sample("f32", DType.F32),
        sample("i32", DType.I32, wide=True),
        sample("i64", DType.I64),
        sample("u8", DType.U8),
        sample("i8", DType.I8),
        sample("i16", DType.I16),
    ]


_LIMITED = always("how much {op} finds depends on contents, so that it stays on the CPU")

OPS = (
    OpDef(
        "WHERE", no_attrs, _infer_where, _reference_where, _where_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=2, result_type=DType.I64), device=OnDevice(limits=_LIMITED),
        quantized=Quantized(stored=True)
    ),
    OpDef(
        "UNIQUE", _parse_unique, _infer_unique, _reference_unique, _unique_samples,
        accuracy=Accuracy.EXACT, movement=Movement(keeps_values=True),
        device=OnDevice(limits=_LIMITED), quantized=Quantized(stored=True)
    ),
)  # fmt: skip
