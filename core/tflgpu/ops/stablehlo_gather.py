"""STABLEHLO_GATHER and STABLEHLO_BROADCAST_IN_DIM (TFLite version 1).

GATHER picks a box of the operand for each row of indices. As in TFLite's kernel
(stablehlo_gather.cc) and StableHLO's specification a box that would not lie in the operand is moved
inside. Of BROADCAST_IN_DIM LiteRT has no CPU kernel; it is as specified, and the shape of its
result is the file's, since its options do not say it. Neither looks at a scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import listed
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
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.values import frozen

_GATHER, _BROADCAST = "STABLEHLO_GATHER", "STABLEHLO_BROADCAST_IN_DIM"
INDICES = (DType.I32, DType.I64)


@frozen
class StablehloGather:
    """Which dimension is what, by StableHLO's names.

    Attributes:
        offset: Dimensions of the result that run over a box.
        collapsed: Dimensions of the operand that a box has one element of and the result has not.
        starts: For each column of indices, the dimension of the operand that it is a place in.
        vector: Dimension of the indices that is a row; as many as there are dimensions: each index
            is a row of its own.
        sizes: Of a box, by dimension of the operand.
    """

    offset: tuple[int, ...]
    collapsed: tuple[int, ...]
    starts: tuple[int, ...]
    vector: int
    sizes: tuple[int, ...]


def check_axes(op: str, what: str, axes: Sequence[int], rank: int, rising: bool = True) -> None:
    """That axes are different ones of a rank, in rising order unless that does not matter.

    Raises:
        ModelError: they are not.
    """
    wrong = len(set(axes)) != len(axes) or any(not 0 <= a < rank for a in axes)
    if wrong or (rising and list(axes) != sorted(axes)):
        raise ModelError(f"{op}: {what} {listed(axes)} of {rank} dimensions")


def columns_of(op: str, indices: Shape, vector: int, starts: Sequence[int]) -> Shape:
    """The shape of indices without their rows.

    Raises:
        ModelError: there are not as many columns as dimensions that they speak of.
    """
    if not 0 <= vector <= len(indices):
        raise ModelError(f"{op}: index_vector_dim {vector} of indices of shape {list(indices)}")
    columns = indices[vector] if vector < len(indices) else 1
    if columns != len(starts):
        raise ModelError(f"{op}: {columns} columns of indices for dimensions {listed(starts)}")
    return (*indices[:vector], *indices[vector + 1 :])


def _parse_gather(fields: Fields) -> StablehloGather:
    return StablehloGather(
        fields.integers("offset_dims"),
        fields.integers("collapsed_slice_dims"),
        fields.integers("start_index_map"),
        fields.integer("index_vector_dim"),
        fields.integers("slice_sizes"),
    )


def _infer_gather(attributes: StablehloGather, operands: Operands) -> list[TensorSpec]:
    x, indices = take_operands(_GATHER, operands, 2)
    if indices.dtype not in INDICES:
        raise ModelError(
            f"{_GATHER}: indices (operand 1) are {indices.dtype.value}; i32 or i64 needed"
        )
    a = attributes
    check_axes(_GATHER, "collapsed_slice_dims", a.collapsed, x.rank)
    check_axes(_GATHER, "start_index_map", a.starts, x.rank, rising=False)
    batch = columns_of(_GATHER, indices.shape, a.vector, a.starts)
    if len(a.sizes) != x.rank or any(
        not 0 <= size <= dim for size, dim in zip(a.sizes, x.shape, strict=True)
    ):
        raise ModelError(f"{_GATHER}: boxes of {listed(a.sizes)} in an operand of {list(x.shape)}")
    if any(a.sizes[axis] != 1 for axis in a.collapsed):
        raise ModelError(
            f"{_GATHER}: of collapsed dimensions {listed(a.collapsed)} a box of {listed(a.sizes)} "
            "has more or less than one element"
        )
    box = [s for axis, s in enumerate(a.sizes) if axis not in a.collapsed]
    rank = len(box) + len(batch)
    check_axes(_GATHER, "offset_dims", a.offset, rank)
    if len(a.offset) != len(box):
        raise ModelError(
            f"{_GATHER}: offset_dims {listed(a.offset)} for boxes of {listed(a.sizes)}"
        )
    left = iter(batch)
    inner = iter(box)
    shape = tuple(next(inner) if axis in a.offset else next(left) for axis in range(rank))
    return [TensorSpec(shape, x.dtype)]


def rows_of(indices: Array, vector: int) -> Array:
    """Indices with their rows along the last axis."""
    return indices[..., None] if vector == indices.ndim else np.moveaxis(indices, vector, -1)


def _reference_gather(attributes: StablehloGather, arrays: Arrays) -> list[Array]:
    x, indices = (present(array) for array in arrays)
    a = attributes
    rows = rows_of(indices, a.vector)
    kept = [axis for axis in range(x.ndim) if axis not in a.collapsed]
    shape = (*rows.shape[:-1], *(a.sizes[axis] for axis in kept))
    found = np.empty(shape, x.dtype)
    for place in np.ndindex(*rows.shape[:-1]):
        first = np.zeros(x.ndim, np.int64)
        first[list(a.starts)] = rows[place]
        first = np.clip(first, 0, np.subtract(x.shape, a.sizes))
        box = x[tuple(slice(at, at + size) for at, size in zip(first, a.sizes, strict=True))]
        found[place] = box.reshape([a.sizes[axis] for axis in kept])
    batch = [axis for axis in range(found.ndim) if axis not in a.offset]
    return [np.ascontiguousarray(np.moveaxis(found, range(found.ndim), (*batch, *a.offset)))]


@frozen
class BroadcastInDim:
    """For each dimension of the operand, the result's that it becomes; and the result's shape."""

    dims: tuple[int, ...]
    shape: tuple[int, ...]


def told_shape(op: str, fields: Fields) -> Shape:
    """The shape that the file gives the first result.

    Raises:
        UnsupportedError: it does not give all of it.
    """
    shapes = fields.get("output_shapes") or ()
    shape = shapes[0] if shapes else None
    if not isinstance(shape, (tuple, list)):
        raise UnsupportedError(
            f"{op}: the shape of its result stands in the file only, and is open"
        )
    return tuple(shape)


def _parse_broadcast(fields: Fields) -> BroadcastInDim:
    return BroadcastInDim(fields.integers("broadcast_dimensions"), told_shape(_BROADCAST, fields))


def _infer_broadcast(attributes: BroadcastInDim, operands: Operands) -> list[TensorSpec]:
    # In files of LiteRT the dimensions may also be a constant operand.
    x, *_ = take_operands(_BROADCAST, operands, 1)
    dims, shape = attributes.dims, attributes.shape
    check_axes(_BROADCAST, "broadcast_dimensions", dims, len(shape), rising=False)
    if len(dims) != x.rank or any(
        size not in (1, shape[axis]) for size, axis in zip(x.shape, dims, strict=True)
    ):
        raise ModelError(
            f"{_BROADCAST}: {x.spec} along dimensions {listed(dims)} of a result of {list(shape)}"
        )
    return [TensorSpec(shape, x.dtype)]


def _reference_broadcast(attributes: BroadcastInDim, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    order = sorted(range(x.ndim), key=lambda axis: attributes.dims[axis])
    wide = [1] * len(attributes.shape)
    for size, axis in zip(x.shape, attributes.dims, strict=True):
        wide[axis] = size
    spread = np.broadcast_to(x.transpose(order).reshape(wide), attributes.shape)
    return [np.ascontiguousarray(spread)]


def _gather_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        indices: Shape,
        fields: dict[str, object],
        dtype: DType = DType.F32,
        wide: bool = False,
        const: bool = False,
    ) -> Sample:
        # Beyond both ends: such boxes are moved inside.
        rows = Arg(indices, DType.I64 if wide else DType.I32, -2, max(shape) + 1, const)
        return Sample(id, fields, (Arg(shape, dtype, -9, 9), rows))

    rows = {
        "offset_dims": (1,),
        "collapsed_slice_dims": (0,),
        "start_index_map": (0,),
        "index_vector_dim": 1,
        "slice_sizes": (1, 6),
    }
    boxes = {
        "offset_dims": (0, 2),
        "collapsed_slice_dims": (1,),
        "start_index_map": (2, 1),
        "index_vector_dim": 0,
        "slice_sizes": (2, 1, 3),
    }
    return [
        sample("rows", (7, 6), (3, 1), rows),
        sample("each_its_row", (7, 6), (4,), rows),
        sample("boxes", (2, 5, 7), (2, 3), boxes),
        sample("i32", (7, 6), (3, 1), rows, DType.I32),
        sample("wide", (7, 6), (3, 1), rows, wide=True),
        sample("wide_const", (2, 5, 7), (2, 3), boxes, wide=True, const=True),
    ]


def _broadcast_samples() -> list[Sample]:
    def sample(id: str, x: Shape, dims: Shape, shape: Shape, dtype: DType = DType.F32) -> Sample:
        fields = {"broadcast_dimensions": dims, "output_shapes": (shape,)}
        return Sample(id, fields, (Arg(x, dtype, -9, 9),))

    return [
        sample("channels", (5,), (2,), (2, 3, 5)),
        sample("rows", (3, 1), (1, 2), (2, 3, 7)),
        sample("turned", (5, 3), (2, 0), (3, 2, 5)),
        sample("scalar", (), (), (3, 5)),
        sample("i32", (3,), (0,), (3, 4), DType.I32),
    ]


OPS = (
    OpDef(
        _GATHER, _parse_gather, _infer_gather, _reference_gather, _gather_samples,
        accuracy=Accuracy.EXACT, quantized=Quantized(stored=True),
        movement=Movement(keeps_values=True), contents=Contents(indices=(1,))
    ),
    OpDef(
        _BROADCAST, _parse_broadcast, _infer_broadcast, _reference_broadcast, _broadcast_samples,
        accuracy=Accuracy.EXACT, quantized=Quantized(stored=True),
        movement=Movement(keeps_values=True)
    ),
)  # fmt: skip
