"""BITCAST and DENSIFY (TFLite version 1): the bytes of a tensor as another type; a sparse constant.

BITCAST to a type of other size takes away, or adds, a last dimension of as many elements as one of
the larger type has of the smaller (bitcast.cc). DENSIFY makes a sparse constant dense, which it is
here from when the file was read, so that nothing is left to do.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import NarrowTypes, always, copies_first
from tflgpu.values import frozen


@frozen
class BitcastAttrs:
    """The type of the result, which stands at its tensor; None: the operand's."""

    output: DType | None


def _parse(fields: Fields) -> BitcastAttrs:
    return BitcastAttrs(fields.get("output_dtype"))


def _cast_shape(shape: Shape, given: DType, wanted: DType) -> Shape:
    if given.itemsize == wanted.itemsize:
        return shape
    if given.itemsize > wanted.itemsize:
        return (*shape, given.itemsize // wanted.itemsize)
    count = wanted.itemsize // given.itemsize
    if shape[-1:] != (count,):
        raise ModelError(
            f"BITCAST: from {given.value} to {wanted.value} the last dimension must be {count}; "
            f"operand 0 has shape {list(shape)}"
        )
    return shape[:-1]


def _infer(attributes: BitcastAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("BITCAST", operands, 1)
    wanted = attributes.output or x.dtype
    for dtype in (x.dtype, wanted):
        if not dtype.has_numpy:
            raise ModelError(f"BITCAST from {x.dtype.value} to {wanted.value}")
    if wanted is DType.BOOL and x.dtype is not DType.BOOL:
        raise ModelError("BITCAST to bool: not every byte is one")
    return [TensorSpec(_cast_shape(x.shape, x.dtype, wanted), wanted)]


def _reference(attributes: BitcastAttrs, arrays: Arrays) -> list[Array]:
    x = np.ascontiguousarray(present(arrays[0])).reshape(present(arrays[0]).shape)
    wanted = attributes.output or DType.from_numpy(x.dtype)
    shape = _cast_shape(x.shape, DType.from_numpy(x.dtype), wanted)
    return [x.reshape(-1).view(wanted.numpy).reshape(shape).copy()]


def _samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], given: DType, wanted: DType) -> Sample:
        return Sample(id, {"output_dtype": wanted}, (Arg(shape, given, -999, 999),))

    return [
        sample("to_bits", (2, 3, 7), DType.F32, DType.I32),
        sample("aligned", (5, 8), DType.F32, DType.I32),
        # As floats these would be denormal or NaN, which devices may change.
        Sample(
            "to_floats",
            {"output_dtype": DType.F32},
            (Arg((3, 5), DType.I32, 0x3F000000, 0x40800000),),
        ),
        sample("same", (3, 5), DType.F32, DType.F32),
        sample("to_bytes", (3, 5), DType.F32, DType.I8),
        sample("from_halves", (3, 5, 2), DType.I16, DType.I32),
        sample("i64", (3,), DType.I64, DType.I32),
        sample("scalar", (), DType.F32, DType.U8),
    ]


def _infer_densify(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("DENSIFY", operands, 1)
    x.const("DENSIFY", "operand 0")
    return [x.spec]


def _reference_densify(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [present(arrays[0]).copy()]


def _densify_samples() -> list[Sample]:
    return [
        Sample("matrix", {}, (Arg((3, 7), const=True),)),
        Sample("filter", {}, (Arg((3, 3, 2, 5), const=True),)),
        Sample("i8", {}, (Arg((3, 5), DType.I8, -9, 9, const=True),)),
    ]


_CHANGED = "devices may change the bits of NaN and of denormal floats, which BITCAST must not"

OPS = (
    OpDef(
        "BITCAST", _parse, _infer, _reference, _samples, accuracy=Accuracy.EXACT,
        quantized=Quantized(stored=True), device=OnDevice(limits=always(_CHANGED)),
        contents=Contents(held=NarrowTypes.BITS)
    ),
    OpDef(
        "DENSIFY", no_attrs, _infer_densify, _reference_densify, _densify_samples,
        accuracy=Accuracy.EXACT, movement=Movement(copies=copies_first, keeps_values=True),
        device=OnDevice(limits=always("DENSIFY of a constant is evaluated when the model is opened"
        ))
    ),
)  # fmt: skip
