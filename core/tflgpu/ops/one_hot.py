"""ONE_HOT (TFLite version 1) and TOPK_V2 (versions 1-3): from indices to rows, and back."""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import (
    INDEX_TYPES,
    const_integer,
    integers,
    need_rank,
    normal_axis,
    present,
    take_operands,
)
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    FileForm,
    Movement,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import each_row, lifted, rows_of
from tflgpu.ops.positions import Along, Positions
from tflgpu.values import evolve, frozen


@frozen
class OneHotAttrs:
    """Where the new dimension goes; -1 = last."""

    axis: int = -1


def _parse_one_hot(fields: Fields) -> OneHotAttrs:
    return OneHotAttrs(fields.integer("axis"))


def _infer_one_hot(attributes: OneHotAttrs, operands: Operands) -> list[TensorSpec]:
    indices, depth, on, off = take_operands("ONE_HOT", operands, 4)
    if indices.dtype not in INDEX_TYPES:
        raise ModelError(f"ONE_HOT: indices (operand 0) are {indices.dtype.value}")
    size = const_integer("ONE_HOT", depth, "depth (operand 1)")
    if size < 0:
        raise ModelError(f"ONE_HOT: depth (operand 1) is {size}")
    need_rank("ONE_HOT", on, "on value (operand 2)", 0)
    need_rank("ONE_HOT", off, "off value (operand 3)", 0)
    if on.dtype is not off.dtype:
        raise ModelError(f"ONE_HOT: on value is {on.dtype.value}, off value {off.dtype.value}")
    axis = normal_axis("ONE_HOT", attributes.axis, indices.rank + 1)
    return [TensorSpec((*indices.shape[:axis], size, *indices.shape[axis:]), on.dtype)]


def _reference_one_hot(attributes: OneHotAttrs, arrays: Arrays) -> list[Array]:
    indices, depth, on, off = (present(a) for a in arrays)
    hot = np.arange(integers(depth)[0]) == indices[..., None]
    return [np.where(np.moveaxis(hot, -1, attributes.axis), on, off).astype(on.dtype)]


@frozen
class TopK:
    """The type of the positions, which only the file's tensor says: i32, or i16 from version 3
    on."""

    index: DType = DType.I32


def _parse_topk(fields: Fields) -> TopK:
    made = fields.get("output_dtypes", ())
    return TopK(DType.I16 if len(made) == 2 and made[1] is DType.I16 else DType.I32)


def _infer_topk(attributes: TopK, operands: Operands) -> list[TensorSpec]:
    x, count = take_operands("TOPK_V2", operands, 2)
    k = const_integer("TOPK_V2", count, "k (operand 1)")
    if x.dtype in (DType.C64, DType.C128):
        raise ModelError("TOPK_V2: operand 0 is of complex numbers, of which none is the largest")
    if x.rank == 0 or not 0 <= k <= x.shape[-1]:
        raise ModelError(f"TOPK_V2: k is {k} for an operand of shape {list(x.shape)}")
    shape = (*x.shape[:-1], k)
    return [TensorSpec(shape, x.dtype), TensorSpec(shape, attributes.index)]


def _reference_topk(attributes: TopK, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    (k,) = integers(present(arrays[1]))
    # Of equal elements the one with the lower index comes first. A stable sort of the reversed
    # row, read backwards, gives that without negating (the lowest integer has no opposite).
    # NaN comes after all numbers, as in TFLite (docs/nan.md).
    turned = x[..., ::-1]
    backwards = np.lexsort((turned, ~np.isnan(turned)), axis=-1)[..., ::-1][..., :k]
    order = x.shape[-1] - 1 - backwards
    return [np.take_along_axis(x, order, -1), order.astype(attributes.index.numpy)]


def _one_hot_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        depth: int,
        axis: int = -1,
        on: float = 1,
        off: float = 0,
        dtype: DType = DType.F32,
        index: DType = DType.I32,
    ) -> Sample:
        # The range goes beyond the depth on both sides: such indices make rows of off values.
        args = (
            Arg(shape, index, -2, depth + 2),
            Arg.of(depth, DType.I32),
            Arg.of(on, dtype),
            Arg.of(off, dtype),
        )
        return Sample(id, {"axis": axis}, args)

    return [
        sample("vector", (5,), 7),
        sample("aligned", (3,), 8),
        sample("values", (2, 3), 5, on=2.5, off=-1.5),
        sample("front", (2, 5), 3, axis=0),
        sample("middle", (3, 5), 4, axis=1),
        sample("scalar", (), 5),
        sample("rank3", (2, 1, 3), 6, axis=2),
        sample("i32", (5,), 3, on=7, off=-7, dtype=DType.I32),
        sample("bool", (5,), 3, on=True, off=False, dtype=DType.BOOL),
        sample("wide_indices", (5,), 3, index=DType.I64),
    ]


def _topk_samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], k: int, dtype: DType = DType.F32) -> Sample:
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg.of(k, DType.I32)))

    return [
        sample("vector", (13,), 3),
        sample("rows", (5, 7), 2),
        sample("all", (3, 5), 5),
        sample("one", (2, 3, 11), 1),
        sample("ties", (5, 23), 9, DType.I32),
        sample("none", (3, 5), 0),
    ]


def _batch_one_hot(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    if refused is None and node.attrs.axis % len(node.outputs[0].shape) == 0:
        return lifted(node, items, (0,), evolve(node.attrs, axis=1))
    return refused or Batched(node.attrs)


def _positions_one_hot(node: Node, cut: Node) -> Positions:
    rank = len(node.outputs[0].shape)
    at = node.attrs.axis % rank
    return Positions([[Along(i + (i >= at)) for i in range(rank - 1)], [], [], []])


OPS = (
    OpDef(
        "ONE_HOT", _parse_one_hot, _infer_one_hot, _reference_one_hot, _one_hot_samples,
        accuracy=Accuracy.EXACT, movement=Movement(keeps_values=True), batch=_batch_one_hot,
        contents=Contents(indices=(0,)), file=FileForm(result_type=2),
        positions=_positions_one_hot
    ),
    OpDef(
        "TOPK_V2", _parse_topk, _infer_topk, _reference_topk, _topk_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=3), movement=Movement(keeps_values=True),
        batch=each_row(0, rank=2)
    ),
)  # fmt: skip
