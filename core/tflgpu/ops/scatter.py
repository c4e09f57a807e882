"""SCATTER_ND (TFLite version 1) and SPARSE_TO_DENSE (versions 1-3): elements put where indices say.

SCATTER_ND begins with zeros and adds up what falls on one place (of booleans: whether any is true).
SPARSE_TO_DENSE begins with a default, and the last value for a place stays. TFLite's kernels
(reference/scatter_nd.h, reference/sparse_to_dense.h) only look whether the position in memory lies
in the result, or do not look at all; here an index outside its dimension is an error. Neither looks
at a scale: of quantized tensors SCATTER_ND adds up the stored numbers, from a stored 0 on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import const_integers, integers, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    FileForm,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)

_INDICES = (DType.I32, DType.I64)


def _check_indices(op: str, indices: Array, shape: Sequence[int]) -> None:
    """That each row of ``indices`` is a place in the leading dimensions of ``shape``."""
    for column, size in enumerate(shape[: indices.shape[-1]]):
        given = indices[..., column]
        bad = (given < 0) | (given >= size)
        if bad.any():
            raise InputError(
                f"{op}: index {given[bad].flat[0]} is outside [0, {size}) of dimension {column}"
            )


def _check_const(op: str, indices: Operand, shape: Sequence[int], rows: Array | None) -> None:
    if indices.data is None or rows is None:
        return
    try:
        _check_indices(op, rows, shape)
    except InputError as error:
        raise ModelError(f"{error} (constant indices)") from None


def _shape(op: str, operand: Operand, what: str) -> tuple[int, ...]:
    need_rank(op, operand, what, 1)
    shape = const_integers(op, operand, what)
    if any(d < 0 for d in shape):
        raise ModelError(f"{op}: {what} {listed(shape)} must not be negative")
    return shape


def _infer_scatter(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "SCATTER_ND"
    indices, updates, wanted = take_operands(op, operands, 3)
    if indices.dtype not in _INDICES or wanted.dtype is not indices.dtype:
        raise ModelError(
            f"{op}: indices (operand 0) are {indices.dtype.value}, the shape (operand 2) "
            f"{wanted.dtype.value}; both must be i32, or both i64"
        )
    if indices.rank < 1 or updates.rank < 1:
        raise ModelError(
            f"{op}: indices of shape {list(indices.shape)} and updates of {list(updates.shape)}; "
            "neither may be a scalar"
        )
    shape = _shape(op, wanted, "shape (operand 2)")
    columns = indices.shape[-1]
    if columns > len(shape) or updates.shape != (*indices.shape[:-1], *shape[columns:]):
        raise ModelError(
            f"{op}: updates (operand 1) of shape {list(updates.shape)} for indices of "
            f"{list(indices.shape)} in a result of {listed(shape)}"
        )
    _check_const(op, indices, shape, indices.data)
    return [TensorSpec(shape, updates.dtype)]


def _reference_scatter(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    indices, updates, wanted = (present(a) for a in arrays)
    shape = integers(wanted)
    _check_indices("SCATTER_ND", indices, shape)
    columns = indices.shape[-1]
    # Of no columns everything falls on everything.
    places = tuple(indices[..., i].reshape(-1) for i in range(columns))
    rows = updates.reshape(-1, *shape[columns:])
    found = np.zeros(shape, updates.dtype)
    if not columns:
        return [np.asarray(rows.any(0) if found.dtype == np.bool_ else rows.sum(0), found.dtype)]
    add = np.logical_or if found.dtype == np.bool_ else np.add
    add.at(found, places, rows)
    return [found]


def _rows(indices: Array) -> Array:
    """The indices of SPARSE_TO_DENSE as rows; scalars and vectors are places in a vector."""
    return indices if indices.ndim == 2 else indices.reshape(-1, 1)


def _infer_dense(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "SPARSE_TO_DENSE"
    indices, wanted, values, default = take_operands(op, operands, 4)
    if indices.dtype not in _INDICES:
        raise ModelError(f"{op}: indices (operand 0) are {indices.dtype.value}; i32 or i64 needed")
    need_rank(op, indices, "indices (operand 0)", 0, 1, 2)
    need_rank(op, values, "values (operand 2)", 0, 1)
    if int(np.prod(default.shape)) != 1 or default.dtype is not values.dtype:
        raise ModelError(
            f"{op}: values (operand 2) are {values.dtype.value}, the default (operand 3) is "
            f"{default.dtype.value} of shape {list(default.shape)}; one element of that type needed"
        )
    shape = _shape(op, wanted, "shape (operand 1)")
    columns = indices.shape[1] if indices.rank == 2 else 1
    count = indices.shape[0] if indices.rank else 1
    if columns != len(shape) or (values.rank == 1 and values.shape[0] != count):
        raise ModelError(
            f"{op}: indices (operand 0) of shape {list(indices.shape)} and values (operand 2) of "
            f"{list(values.shape)} for a result of {listed(shape)}"
        )
    rows = None if indices.data is None else _rows(indices.data)
    _check_const(op, indices, shape, rows)
    return [TensorSpec(shape, values.dtype)]


def _reference_dense(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    indices, wanted, values, default = (present(a) for a in arrays)
    shape = integers(wanted)
    rows = _rows(indices)
    _check_indices("SPARSE_TO_DENSE", rows, shape)
    found = np.full(shape, default.reshape(-1)[0], values.dtype)
    given = np.broadcast_to(values, (len(rows),))
    for row, value in zip(rows.tolist(), given, strict=True):  # in order: the last one stays
        found[tuple(row)] = value
    return [found]


def _scatter_samples() -> list[Sample]:
    def sample(
        id: str,
        lead: tuple[int, ...],
        shape: tuple[int, ...],
        columns: int,
        dtype: DType = DType.F32,
        const: bool = False,
    ) -> Sample:
        indices = Arg((*lead, columns), DType.I32, 0, min(shape[:columns]), const)
        updates = Arg((*lead, *shape[columns:]), dtype, -9, 9)
        return Sample(id, {}, (indices, updates, Arg.of(shape, DType.I32)), accumulates=7)

    return [
        sample("elements", (5,), (7, 3), 2),
        sample("rows", (3,), (5, 7), 1),
        sample("rows_aligned", (2, 3), (7, 8), 1, const=True),
        sample("twice_the_same", (11,), (3, 5), 1),
        sample("slabs", (2,), (3, 5, 6), 1),
        sample("vector", (4,), (13,), 1),
        sample("i32", (5,), (3, 7), 2, DType.I32),
        sample("bool", (5,), (3, 7), 1, DType.BOOL),
        sample("i64", (5,), (3, 7), 1, DType.I64),
        # Everything falls on everything.
        Sample(
            "no_columns",
            {},
            (Arg.of(np.zeros((3, 0)), DType.I32), Arg((3, 2, 5)), Arg.of([2, 5], DType.I32)),
            accumulates=3,
        ),
    ]


def _dense_samples() -> list[Sample]:
    def sample(
        id: str,
        count: int,
        shape: tuple[int, ...],
        dtype: DType = DType.F32,
        *,
        const: bool = False,
        one: bool = False,
        index: DType = DType.I32,
        wide: bool = False,
    ) -> Sample:
        lead = (count,) if len(shape) == 1 else (count, len(shape))
        indices = Arg(lead, index, 0, min(shape), const)
        dims = Arg.of(shape, DType.I64 if wide else DType.I32)
        values = Arg(() if one else (count,), dtype, -9, 9)
        return Sample(id, {}, (indices, dims, values, Arg((), dtype, -9, 9)))

    return [
        sample("matrix", 5, (3, 7)),
        sample("vector", 4, (11,)),
        sample("aligned", 3, (2, 3, 8), const=True),
        sample("rank4", 7, (2, 3, 2, 5)),
        sample("wide", 5, (3, 5), index=DType.I64, wide=True, const=True),
        sample("wide_indices", 5, (3, 5), index=DType.I64),
        sample("i32", 5, (3, 6), DType.I32),
        sample("i64", 5, (3, 6), DType.I64),
        Sample(
            "scalar",
            {},
            (Arg((), DType.I32, 0, 5), Arg.of([7], DType.I32), Arg((), low=-9), Arg.of(0.5)),
        ),
    ]


OPS = (
    OpDef(
        "SCATTER_ND", no_attrs, _infer_scatter, _reference_scatter, _scatter_samples,
        accuracy=Accuracy.ACCUMULATE, quantized=Quantized(stored=True),
        contents=Contents(indices=(0, 2)), device=OnDevice(checked=(0,)),
        file=FileForm(result_type=1)
    ),
    OpDef(
        "SPARSE_TO_DENSE", no_attrs, _infer_dense, _reference_dense, _dense_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=3, result_type=2),
        movement=Movement(keeps_values=True), quantized=Quantized(stored=True),
        contents=Contents(indices=(0,)), device=OnDevice(checked=(0,))
    ),
)  # fmt: skip
