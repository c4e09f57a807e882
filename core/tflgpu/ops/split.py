"""SPLIT, SPLIT_V, UNPACK: one tensor cut along an axis into several.

SPLIT: TFLite versions 1-5; SPLIT_V: 1-3; UNPACK: 1-6; later ones add element types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.budget import MAX_RESULTS
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import (
    const_integer,
    const_integers,
    integers,
    normal_axis,
    present,
    take_operands,
)
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    Movement,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.ops.facets import Batched, Items, copies_first
from tflgpu.ops.items import Batch, lifted, next_axes, rows_of
from tflgpu.ops.positions import Axes, Positions, Rule, without
from tflgpu.ops.reshape import as_reshape
from tflgpu.values import evolve, frozen


@frozen
class SplitAttrs:
    """Number of results."""

    num_splits: int


def _parse_split(fields: Fields) -> SplitAttrs:
    return SplitAttrs(fields.integer("num_splits", minimum=1))


def _parts(x: TensorSpec, axis: int, sizes: Sequence[int]) -> list[TensorSpec]:
    head, tail = x.shape[:axis], x.shape[axis + 1 :]
    return [TensorSpec((*head, size, *tail), x.dtype) for size in sizes]


def _infer_split(attributes: SplitAttrs, operands: Operands) -> list[TensorSpec]:
    where, x = take_operands("SPLIT", operands, 2)
    # TFLite's kernel reads 32 bits of either type: the lower half of an axis of 64.
    axis = const_integer("SPLIT", where, "axis (operand 0)", also=(DType.U64,))
    axis = normal_axis("SPLIT", axis, x.rank)
    count = attributes.num_splits
    if x.shape[axis] % count or count > MAX_RESULTS:
        raise ModelError(
            f"SPLIT: dimension {axis} of operand 1, {list(x.shape)}, does not divide by {count}, "
            f"or that is more than {MAX_RESULTS}"
        )
    return _parts(x.spec, axis, [x.shape[axis] // count] * count)


def _reference_split(attributes: SplitAttrs, arrays: Arrays) -> list[Array]:
    (axis,) = integers(present(arrays[0]))
    return [p.copy() for p in np.split(present(arrays[1]), attributes.num_splits, axis)]


def split_sizes(sizes: Sequence[int], length: int) -> tuple[int, ...]:
    """SPLIT_V's sizes with a -1 replaced by what the others leave of ``length``.

    Raises:
        ModelError: they do not add up, or there is more than one -1.
    """
    known = sum(s for s in sizes if s != -1)
    fits = known == length if -1 not in sizes else known <= length and list(sizes).count(-1) == 1
    if not fits or any(s < -1 for s in sizes):
        raise ModelError(f"SPLIT_V: sizes {listed(sizes)} do not add up to a dimension of {length}")
    return tuple(length - known if s == -1 else s for s in sizes)


def _infer_split_v(attributes: SplitAttrs, operands: Operands) -> list[TensorSpec]:
    x, parts, where = take_operands("SPLIT_V", operands, 3)
    axis = const_integer("SPLIT_V", where, "axis (operand 2)")
    axis = normal_axis("SPLIT_V", axis, x.rank)
    sizes = const_integers("SPLIT_V", parts, "sizes (operand 1)", attributes.num_splits)
    return _parts(x.spec, axis, split_sizes(sizes, x.shape[axis]))


def _reference_split_v(attributes: SplitAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    (axis,) = integers(present(arrays[2]))
    sizes = split_sizes(integers(present(arrays[1])), x.shape[axis])
    return [p.copy() for p in np.split(x, np.cumsum(sizes)[:-1], axis)]


@frozen
class UnpackAttrs:
    """The axis to take apart, negative = from the back, and its size."""

    axis: int
    num: int


def _parse_unpack(fields: Fields) -> UnpackAttrs:
    return UnpackAttrs(fields.integer("axis"), fields.integer("num", minimum=0))


def _infer_unpack(attributes: UnpackAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("UNPACK", operands, 1)
    axis = normal_axis("UNPACK", attributes.axis, x.rank)
    if x.shape[axis] != attributes.num or attributes.num > MAX_RESULTS:
        raise ModelError(
            f"UNPACK: dimension {axis} of {list(x.shape)} is not num, {attributes.num}, or that "
            f"is more than {MAX_RESULTS}"
        )
    part = TensorSpec((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)
    return [part] * attributes.num


def _reference_unpack(attributes: UnpackAttrs, arrays: Arrays) -> list[Array]:
    return [part.copy() for part in np.moveaxis(present(arrays[0]), attributes.axis, 0)]


def _split_samples() -> list[Sample]:
    def sample(
        id: str, axis: int, count: int, shape: tuple[int, ...], dtype: DType = DType.F32
    ) -> Sample:
        args = (Arg.of(axis, DType.I32), Arg(shape, dtype, -9, 9))
        return Sample(id, {"num_splits": count}, args)

    return [
        sample("channels_odd", 3, 2, (2, 3, 5, 6)),
        sample("channels_aligned", -1, 3, (1, 3, 5, 24)),
        sample("channels_single", 1, 5, (7, 5)),
        sample("height", 1, 2, (2, 6, 5, 3)),
        sample("width", -2, 5, (1, 3, 5, 7)),
        sample("batch", 0, 3, (3, 5)),
        sample("vector", 0, 3, (15,)),
        sample("one", 1, 1, (3, 5)),
        sample("rank5", 4, 2, (1, 2, 3, 2, 10)),
        sample("i32", 1, 2, (3, 6), DType.I32),
    ]


def _split_v_samples() -> list[Sample]:
    def sample(
        id: str, axis: int, sizes: Sequence[int], shape: tuple[int, ...], dtype: DType = DType.F32
    ) -> Sample:
        args = (Arg(shape, dtype, -9, 9), Arg.of(sizes, DType.I32), Arg.of(axis, DType.I32))
        return Sample(id, {"num_splits": len(sizes)}, args)

    return [
        sample("channels_odd", 3, [1, 5, 3], (2, 3, 5, 9)),
        sample("channels_aligned", -1, [8, 4, 5], (1, 3, 5, 17)),
        sample("rest", 1, [2, -1], (2, 7, 5, 3)),
        sample("rest_first", -2, [-1, 1, 2], (3, 5, 7)),
        sample("batch", 0, [2, 1], (3, 5)),
        sample("vector", 0, [5, 7, 3], (15,)),
        sample("i32", 1, [5, 1], (3, 6), DType.I32),
        sample("rank5", 2, [1, 2], (1, 2, 3, 2, 5)),
    ]


def _unpack_samples() -> list[Sample]:
    def sample(id: str, axis: int, shape: tuple[int, ...], dtype: DType = DType.F32) -> Sample:
        return Sample(id, {"axis": axis, "num": shape[axis]}, (Arg(shape, dtype, -9, 9),))

    return [
        sample("front", 0, (3, 5, 7)),
        sample("middle", 1, (2, 3, 5, 6)),
        sample("channels", -1, (2, 3, 5)),
        sample("before_channels", -2, (3, 2, 8)),
        sample("matrix_columns", 1, (5, 3)),
        sample("scalars", 0, (3,)),
        sample("one", 1, (3, 1, 5)),
        sample("i32", 0, (2, 7), DType.I32),
        sample("bool", 0, (2, 5), DType.BOOL),
    ]


def _batch_split(axis: int, source: int) -> Batch:
    def batch(node: Node, items: Items) -> Batched | str:
        rank = len(node.input(source).shape)
        refused = rows_of(node, items, (source,))
        if refused is None and integers(node.const(axis))[0] % rank == 0:
            wanted = {axis: next_axes(node.const(axis), rank)}
            return lifted(node, items, (source,), constants=wanted)
        return refused or Batched(node.attrs)

    return batch


def _batch_unpack(node: Node, items: Items) -> Batched | str:
    rank = len(node.input(0).shape)
    if node.attrs.axis % rank:
        return Batched(node.attrs)
    if len(node.outputs) == 1:
        return as_reshape(node, items)
    return lifted(node, items, (0,), evolve(node.attrs, axis=1))


def _positions_split(axis: int, source: int) -> Rule:
    def positions(node: Node, cut: Node) -> Positions:
        axes: list[Axes] = [[None] for _ in node.inputs]
        axes[source] = without(integers(node.const(axis))[0], node.input(source))
        return Positions(axes)

    return positions


OPS = (
    OpDef(
        "SPLIT", _parse_split, _infer_split, _reference_split, _split_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=5, result_type=1),
        movement=Movement(keeps_values=True, copies=lambda node: 1), batch=_batch_split(0, 1),
        positions=_positions_split(0, 1)
    ),
    OpDef(
        "SPLIT_V", _parse_split, _infer_split_v, _reference_split_v, _split_v_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=3, result_type=0),
        movement=Movement(keeps_values=True, copies=copies_first), batch=_batch_split(2, 0),
        positions=_positions_split(2, 0)
    ),
    OpDef(
        "UNPACK", _parse_unpack, _infer_unpack, _reference_unpack, _unpack_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=6),
        movement=Movement(keeps_values=True, copies=copies_first), batch=_batch_unpack,
        positions=lambda node, cut: Positions([without(node.attrs.axis, node.input(0), gone=True)])
    ),
)  # fmt: skip
