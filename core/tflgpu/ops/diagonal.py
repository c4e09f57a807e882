"""MATRIX_DIAG and MATRIX_SET_DIAG (TFLite version 1): rows become, or replace, main diagonals."""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.items import each_row, lifted


def _infer_diag(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("MATRIX_DIAG", operands, 1)
    if x.rank < 1:
        raise ModelError("MATRIX_DIAG: operand 0 is a scalar; at least one dimension is needed")
    return [TensorSpec((*x.shape, x.shape[-1]), x.dtype)]


def _reference_diag(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    found = np.zeros((*x.shape, x.shape[-1]), x.dtype)
    at = np.arange(x.shape[-1])
    found[..., at, at] = x
    return [found]


def diagonal_of(shape: Shape) -> Shape:
    """The shape of the diagonals of matrices."""
    return (*shape[:-2], min(shape[-2:]))


def _infer_set(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, diagonal = take_operands("MATRIX_SET_DIAG", operands, 2)
    if x.rank < 2:
        raise ModelError(f"MATRIX_SET_DIAG: operand 0 has shape {list(x.shape)}, no matrices")
    if x.dtype is not diagonal.dtype:
        raise ModelError(
            f"MATRIX_SET_DIAG: operands are {x.dtype.value} and {diagonal.dtype.value}"
        )
    wanted = diagonal_of(x.shape)
    # TFLite's kernel reads it as one row of numbers, in any shape.
    if math.prod(diagonal.shape) != math.prod(wanted):
        raise ModelError(
            f"MATRIX_SET_DIAG: the diagonal (operand 1) has shape {list(diagonal.shape)}, "
            f"{list(wanted)} needed"
        )
    return [x.spec]


def _reference_set(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, diagonal = present(arrays[0]), present(arrays[1])
    found = x.copy()
    wanted = diagonal_of(x.shape)
    at = np.arange(wanted[-1])
    found[..., at, at] = diagonal.reshape(wanted)
    return [found]


def _diag_samples() -> list[Sample]:
    def sample(id: str, *shape: int, dtype: DType = DType.F32) -> Sample:
        return Sample(id, {}, (Arg(shape, dtype, -9, 9),))

    return [
        sample("vector", 7),
        sample("aligned", 3, 8),
        sample("rows", 2, 3, 5),
        sample("one", 3, 1),
        sample("i32", 2, 5, dtype=DType.I32),
        sample("i8", 2, 5, dtype=DType.I8),
    ]


def _set_samples() -> list[Sample]:
    def sample(id: str, *shape: int, dtype: DType = DType.F32, const: bool = False) -> Sample:
        diagonal = diagonal_of(shape)
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg(diagonal, dtype, -9, 9, const)))

    return [
        sample("square", 5, 5),
        sample("wide", 2, 3, 7),
        sample("tall", 2, 7, 3),
        sample("aligned", 2, 1, 8, 8, const=True),
        sample("row", 3, 1, 5),
        sample("i32", 3, 5, dtype=DType.I32),
        sample("i8", 3, 5, dtype=DType.I8),
        Sample(
            "flat_diagonal", {}, (Arg((3, 1, 5), DType.F32, -9, 9), Arg((3,), DType.F32, -9, 9))
        ),
    ]


OPS = (
    OpDef(
        "MATRIX_DIAG", no_attrs, _infer_diag, _reference_diag, _diag_samples,
        accuracy=Accuracy.EXACT, movement=Movement(keeps_values=True), batch=each_row(0, rank=2),
        quantized=Quantized(stored=True), file=FileForm(result_type=0)
    ),
    OpDef(
        "MATRIX_SET_DIAG", no_attrs, _infer_set, _reference_set, _set_samples,
        accuracy=Accuracy.EXACT, movement=Movement(keeps_values=True),
        quantized=Quantized(stored=True), file=FileForm(result_type=0),
        batch=lambda node, items: lifted(node, items, (0, 1))
    ),
)  # fmt: skip
