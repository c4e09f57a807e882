"""GATHER, GATHER_ND, EMBEDDING_LOOKUP: slices picked out of a tensor by index.

GATHER: TFLite versions 1-8; GATHER_ND: 1-6; EMBEDDING_LOOKUP: 1-5.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.ops.axes import INDEX_TYPES, need_rank, normal_axis, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    FileForm,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import check_unscaled
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import each_row, lifted
from tflgpu.ops.positions import Along, Axes, Positions, axes_from
from tflgpu.values import evolve, field, frozen


def _indices(op: str, operand: Operand, what: str) -> None:
    if operand.dtype not in INDEX_TYPES:
        raise ModelError(f"{op}: {what} is {operand.dtype.value}; whole numbers needed")


def _within(op: str, indices: Array, size: int) -> None:
    bad = (indices < 0) | (indices >= size)
    if bad.any():
        raise InputError(f"{op}: index {indices[bad].flat[0]} is outside [0, {size})")


def _check_const(op: str, indices: Operand, size: int) -> None:
    if indices.data is None:
        return
    try:
        _within(op, indices.data, size)
    except InputError as error:
        raise ModelError(f"{error} (constant indices)") from None


@frozen
class GatherAttrs:
    """``axis`` of the operand (negative = from the back) that the indices speak of, after
    ``batch_dims`` leading dimensions that operand and indices share (negative = from the back
    of the indices)."""

    axis: int = 0
    batch_dims: int = 0


def _parse_gather(fields: Fields) -> GatherAttrs:
    return GatherAttrs(fields.integer("axis"), fields.integer("batch_dims"))


def gather_axes(attributes: GatherAttrs, rank: int, index_rank: int) -> tuple[int, int]:
    """The axis and the number of batch dimensions, both from the front.

    Raises:
        ModelError: they are not dimensions of the operand and of the indices.
    """
    axis = normal_axis("GATHER", attributes.axis, rank)
    batch = attributes.batch_dims
    batch = batch + index_rank if batch < 0 else batch
    if not 0 <= batch <= min(axis, index_rank):
        raise ModelError(
            f"GATHER: batch_dims {attributes.batch_dims} with axis {axis} and indices of rank "
            f"{index_rank}"
        )
    return axis, batch


def _infer_gather(attributes: GatherAttrs, operands: Operands) -> list[TensorSpec]:
    x, indices = take_operands("GATHER", operands, 2)
    _indices("GATHER", indices, "indices (operand 1)")
    if x.dtype is DType.STRING and x.rank != 1:
        raise ModelError(f"GATHER: texts of shape {list(x.shape)}; TFLite takes a vector of them")
    axis, batch = gather_axes(attributes, x.rank, indices.rank)
    if x.shape[:batch] != indices.shape[:batch]:
        raise ModelError(
            f"GATHER: operand {list(x.shape)} and indices {list(indices.shape)} differ in their "
            f"{batch} batch dimensions"
        )
    _check_const("GATHER", indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :])
    return [TensorSpec(shape, x.dtype)]


def _reference_gather(attributes: GatherAttrs, arrays: Arrays) -> list[Array]:
    x, indices = present(arrays[0]), present(arrays[1])
    axis, batch = gather_axes(attributes, x.ndim, indices.ndim)
    _within("GATHER", indices, x.shape[axis])
    out = np.empty((*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(*x.shape[:batch]):
        out[at] = np.take(x[at], indices[at], axis - batch)
    return [out]


def _infer_gather_nd(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, indices = take_operands("GATHER_ND", operands, 2)
    _indices("GATHER_ND", indices, "indices (operand 1)")
    if indices.rank == 0 or not 1 <= indices.shape[-1] <= x.rank:
        raise ModelError(
            f"GATHER_ND: indices of shape {list(indices.shape)} into an operand of rank {x.rank}"
        )
    for column in range(indices.shape[-1]):
        if indices.data is not None:
            one = evolve(indices, data=indices.data[..., column])
            _check_const("GATHER_ND", one, x.shape[column])
    return [TensorSpec((*indices.shape[:-1], *x.shape[indices.shape[-1] :]), x.dtype)]


def _reference_gather_nd(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, indices = present(arrays[0]), present(arrays[1])
    columns = tuple(indices[..., i] for i in range(indices.shape[-1]))
    for column, size in zip(columns, x.shape, strict=False):
        _within("GATHER_ND", column, size)
    return [np.array(x[columns], x.dtype)]


@frozen
class Lookup:
    """``floats``: a table of 8-bit numbers gives the real ones that they stand for. Of a table of
    floats it says nothing, so that it makes no difference between attributes."""

    floats: bool = field(default=False, eq=False)


def _parse_lookup(fields: Fields) -> Lookup:
    return Lookup(fields.get("output_dtype") is DType.F32)


def _infer_lookup(attributes: Lookup, operands: Operands) -> list[TensorSpec]:
    ids, table = take_operands("EMBEDDING_LOOKUP", operands, 2)
    need_rank("EMBEDDING_LOOKUP", ids, "ids (operand 0)", 1)
    if ids.dtype is not DType.I32:
        raise ModelError(f"EMBEDDING_LOOKUP: ids (operand 0) are {ids.dtype.value}, i32 needed")
    if table.rank < 2:
        raise ModelError(f"EMBEDDING_LOOKUP: table (operand 1) has shape {list(table.shape)}")
    _check_const("EMBEDDING_LOOKUP", ids, table.shape[0])
    is_hybrid = attributes.floats and table.dtype is DType.I8
    dtype = DType.F32 if is_hybrid else table.dtype
    return [TensorSpec((*ids.shape, *table.shape[1:]), dtype)]


def _reference_lookup(attributes: Lookup, arrays: Arrays) -> list[Array]:
    ids, table = present(arrays[0]), present(arrays[1])
    if attributes.floats:
        check_unscaled("EMBEDDING_LOOKUP", table)
    _within("EMBEDDING_LOOKUP", ids, table.shape[0])
    return [np.take(table, ids, 0)]


def _gather_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        index_shape: tuple[int, ...],
        axis: int = 0,
        batch: int = 0,
        dtype: DType = DType.F32,
        const: bool = False,
        wide: bool = False,
    ) -> Sample:
        indices = Arg(index_shape, DType.I64 if wide else DType.I32, 0, shape[axis], const)
        fields = {"axis": axis, "batch_dims": batch}
        return Sample(id, fields, (Arg(shape, dtype, -9, 9), indices))

    return [
        sample("rows", (7, 5), (3,)),
        sample("rows_aligned", (7, 8), (2, 3)),
        sample("scalar_index", (7, 5), ()),
        sample("channels", (2, 3, 5), (7,), axis=-1),
        sample("channels_const", (2, 3, 5), (6,), axis=2, const=True),
        sample("middle", (2, 5, 3, 6), (4,), axis=1),
        sample("middle_matrix", (2, 5, 3), (2, 2), axis=1, const=True),
        sample("vector", (13,), (5,)),
        sample("vector_matrix", (13,), (3, 5)),
        sample("batch", (2, 7, 5), (2, 3), axis=1, batch=1),
        sample("batch_later_axis", (2, 3, 7, 5), (2, 4), axis=2, batch=1),
        sample("i32", (7, 5), (3,), dtype=DType.I32),
        sample("bool", (7, 5), (3,), dtype=DType.BOOL),
        sample("wide_indices", (7, 5), (3,), wide=True),
        sample("wide_const", (7, 5), (3,), wide=True, const=True),
    ]


def _gather_nd_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        lead: tuple[int, ...],
        columns: int,
        dtype: DType = DType.F32,
        const: bool = False,
    ) -> Sample:
        # One range fits all columns, so it is that of the smallest dimension spoken of.
        high = min(shape[:columns])
        indices = Arg((*lead, columns), DType.I32, 0, high, const)
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), indices))

    return [
        sample("elements", (5, 7), (3,), 2),
        sample("rows", (5, 7), (3,), 1),
        sample("rows_aligned", (5, 3, 8), (2, 3), 2),
        sample("slabs", (5, 3, 7), (2,), 1),
        sample("const", (3, 5, 7), (11,), 3, const=True),
        sample("one", (3, 5), (), 2),
        sample("vector", (11,), (2, 3), 1),
        sample("i32", (5, 7), (3,), 1, DType.I32),
    ]


def _lookup_samples() -> list[Sample]:
    def sample(
        id: str, count: int, table: tuple[int, ...], const: bool = True, const_ids: bool = False
    ) -> Sample:
        ids = Arg((count,), DType.I32, 0, table[0], const_ids)
        return Sample(id, {}, (ids, Arg(table, const=const)))

    return [
        sample("odd", 3, (7, 5)),
        sample("aligned", 5, (11, 8)),
        sample("one", 1, (7, 13)),
        sample("rank3", 3, (7, 3, 5)),
        sample("rank4", 2, (5, 2, 3, 4)),
        sample("runtime_table", 3, (7, 5), const=False),
        sample("const_ids", 3, (7, 6), const=False, const_ids=True),
        sample("many", 37, (17, 3)),
    ]


def _batch_gather(node: Node, items: Items) -> Batched | str:
    x, indices = node.input(0), node.input(1)
    axis, batch = gather_axes(node.attrs, len(x.shape), len(indices.shape))
    by_item = items.operands == {0, 1} and not batch
    if by_item or (items.operands == {0} and axis == 0):
        wanted = evolve(node.attrs, axis=axis + 1, batch_dims=1 if by_item else 0)
        return lifted(node, items, tuple(items.operands), wanted)
    if items.operands == {1} and axis:
        return "operand 0, which is the same for all items, is not looked up along axis 0"
    if items.operands == {0} and batch:
        if indices.data is None:
            return "operand 1 is the same for all items, and not a constant"
        return Batched(node.attrs, {1: items.times(indices.data)})
    return Batched(node.attrs)


def _batch_gather_nd(node: Node, items: Items) -> Batched | str:
    if 0 not in items.operands:
        return each_row(1, rank=2)(node, items)
    x, indices = node.input(0), node.input(1)
    *lead, columns = indices.shape
    kind = indices.dtype.numpy
    if items.count * x.shape[0] > np.iinfo(kind).max:
        return f"indices of {indices.dtype.value} do not reach the rows of all items"
    numbers = np.arange(items.count, dtype=kind).reshape(-1, *[1] * len(lead), 1)
    if 1 in items.operands:
        # The item is a column of its own, so that an index outside reads no other item.
        shapes = {i: (items.count, *v.shape) for i, v in enumerate((x, indices))}
        own = np.broadcast_to(numbers, (items.count, *lead, 1)).copy()
        return Batched(node.attrs, shapes=shapes, columns={1: own})
    if indices.data is None:
        return "operand 1 is the same for all items, and not a constant"
    rows = np.repeat(indices.data[None], items.count, 0)
    rows[..., :1] += numbers * kind.type(x.shape[0])
    shape = items.wide((*lead, columns)) if lead else (items.count, columns)
    return Batched(node.attrs, {1: rows.reshape(shape)}, shapes={0: items.wide(x.shape)})


def _picked(indices: Value, first: int, lead: int) -> tuple[Axes, Along | None]:
    """The leading axes of indices, as the result's from ``first`` on, and the axis that these speak
    of. Constants were checked at each size: only elements that are there are read. What is computed
    behind the size has to be an index, too."""
    known = indices.is_const
    return axes_from(first, lead, None if known else 0), Along() if known else None


def _positions_gather(node: Node, cut: Node) -> Positions:
    x, indices = node.input(0), node.input(1)
    rank, index_rank = len(x.shape), len(indices.shape)
    axis, batch = gather_axes(node.attrs, rank, index_rank)
    of_indices, picked = _picked(indices, axis, index_rank - batch)
    shared = axes_from(0, batch, None if indices.is_const else 0)
    after = axes_from(axis + index_rank - batch, rank - axis - 1)
    return Positions([[*axes_from(0, axis), picked, *after], [*shared, *of_indices]])


def _positions_gather_nd(node: Node, cut: Node) -> Positions:
    x, indices = node.input(0), node.input(1)
    *lead, columns = indices.shape
    of_indices, picked = _picked(indices, 0, len(lead))
    after = axes_from(len(lead), len(x.shape) - columns)
    return Positions([[*[picked] * columns, *after], [*of_indices, None]])


def _positions_lookup(node: Node, cut: Node) -> Positions:
    of_indices, picked = _picked(node.input(0), 0, 1)
    return Positions([of_indices, [picked, *axes_from(1, len(node.input(1).shape) - 1)]])


OPS = (
    OpDef(
        "GATHER", _parse_gather, _infer_gather, _reference_gather, _gather_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True, indices=(1,)),
        file=FileForm(max_version=8, result_type=0), movement=Movement(keeps_values=True),
        device=OnDevice(checked=(1,)), batch=_batch_gather, positions=_positions_gather
    ),
    OpDef(
        "GATHER_ND", no_attrs, _infer_gather_nd, _reference_gather_nd, _gather_nd_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True, indices=(1,)),
        file=FileForm(max_version=6, result_type=0), movement=Movement(keeps_values=True),
        device=OnDevice(checked=(1,)), batch=_batch_gather_nd,
        positions=_positions_gather_nd
    ),
    OpDef(
        "EMBEDDING_LOOKUP", _parse_lookup, _infer_lookup, _reference_lookup, _lookup_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=5), movement=Movement(keeps_values=True),
        device=OnDevice(checked=(0,)), batch=each_row(0), positions=_positions_lookup
    ),
)  # fmt: skip
