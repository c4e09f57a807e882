"""RESHAPE, SQUEEZE, EXPAND_DIMS: another shape for the same elements in row-major order.

RESHAPE: TFLite version 1; SQUEEZE: 1-2; EXPAND_DIMS: 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import (
    const_integer,
    const_integers,
    elements,
    integers,
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
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import rows_of
from tflgpu.ops.positions import reshaped
from tflgpu.values import frozen


@frozen
class ReshapeAttrs:
    """``new_shape`` of the options; what counts is operand 1 where there is one."""

    new_shape: tuple[int, ...] = ()


def _parse_reshape(fields: Fields) -> ReshapeAttrs:
    new = fields.integers("new_shape")
    # Files of early converters say [0] for a scalar.
    return ReshapeAttrs(() if new == (0,) else new)


def _resolve(wanted: Sequence[int], old: tuple[int, ...]) -> tuple[int, ...]:
    """``wanted`` with its -1 replaced by what the number of elements leaves for it. Where there are
    none and ``wanted`` says so, -1 is what the sizes other than 0 leave, rounded down, as in
    TFLite."""
    if any(d < -1 for d in wanted):
        raise ModelError(f"RESHAPE: new shape {listed(wanted)} has a size below -1")
    if list(wanted).count(-1) > 1:
        raise ModelError(f"RESHAPE: new shape {listed(wanted)} has more than one -1")
    count = elements(old)
    known = elements([d for d in wanted if d != -1])
    if -1 in wanted and count == known == 0:
        count, known = elements([d for d in old if d]), elements([d for d in wanted if d > 0])
        return tuple(count // known if d == -1 else d for d in wanted)
    fits = count == known if -1 not in wanted else known > 0 and count % known == 0
    if not fits:
        raise ModelError(
            f"RESHAPE: operand of shape {list(old)} has {count} elements, which do not fit "
            f"new shape {listed(wanted)}"
        )
    return tuple(count // known if d == -1 else d for d in wanted)


def _reshape(
    attributes: ReshapeAttrs, shape: tuple[int, ...], new: tuple[int, ...] | None
) -> tuple[int, ...]:
    return _resolve(attributes.new_shape if new is None else new, shape)


def _infer_reshape(attributes: ReshapeAttrs, operands: Operands) -> list[TensorSpec]:
    args = take_operands("RESHAPE", operands, 1, 2)
    new = const_integers("RESHAPE", args[1], "new shape (operand 1)") if len(args) > 1 else None
    return [TensorSpec(_reshape(attributes, args[0].shape, new), args[0].dtype)]


def _reference_reshape(attributes: ReshapeAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    new = integers(present(arrays[1])) if len(arrays) > 1 else None
    return [x.reshape(_reshape(attributes, x.shape, new)).copy()]


@frozen
class SqueezeAttrs:
    """The dimensions to drop; none given = every one of size 1."""

    squeeze_dims: tuple[int, ...] = ()


def _parse_squeeze(fields: Fields) -> SqueezeAttrs:
    return SqueezeAttrs(fields.integers("squeeze_dims"))


def _squeeze(attributes: SqueezeAttrs, shape: tuple[int, ...]) -> tuple[int, ...]:
    axes = {normal_axis("SQUEEZE", a, len(shape)) for a in attributes.squeeze_dims}
    for axis in axes:
        if shape[axis] != 1:
            raise ModelError(f"SQUEEZE: dimension {axis} of {list(shape)} is not 1")
    if not attributes.squeeze_dims:
        axes = {i for i, d in enumerate(shape) if d == 1}
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer_squeeze(attributes: SqueezeAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("SQUEEZE", operands, 1)
    return [TensorSpec(_squeeze(attributes, x.shape), x.dtype)]


def _reference_squeeze(attributes: SqueezeAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    return [x.reshape(_squeeze(attributes, x.shape)).copy()]


def _infer_expand(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, where = take_operands("EXPAND_DIMS", operands, 2)
    axis = const_integer("EXPAND_DIMS", where, "axis (operand 1)")
    axis = normal_axis("EXPAND_DIMS", axis, x.rank + 1)
    return [TensorSpec((*x.shape[:axis], 1, *x.shape[axis:]), x.dtype)]


def _reference_expand(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    (axis,) = integers(present(arrays[1]))
    return [np.expand_dims(present(arrays[0]), axis).copy()]


def _reshape_samples() -> list[Sample]:
    def sample(
        id: str, shape: tuple[int, ...], new: Sequence[int], dtype: DType = DType.F32
    ) -> Sample:
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg.of(new, DType.I32)))

    return [
        sample("flatten", (1, 3, 5, 7), [1, 105]),
        sample("rows", (2, 3, 5, 7), [-1, 7]),
        sample("same_channels", (2, 3, 5), [3, 1, 2, 5]),
        sample("aligned", (1, 3, 2, 8), [6, 2, -1]),
        sample("aligned_to_odd", (3, 4), [2, 6]),
        sample("odd_to_aligned", (2, 3, 6), [9, 4]),
        sample("to_scalar", (1, 1), []),
        sample("from_vector", (30,), [2, 3, 1, 5]),
        sample("rank6", (2, 3, 5, 2), [2, 3, 1, 5, 1, 2]),
        sample("i32", (2, 9), [3, 6], DType.I32),
        sample("bool", (5, 3), [3, 5], DType.BOOL),
        Sample("option", {"new_shape": [3, -1]}, (Arg((2, 3, 5)),)),
        Sample("option_scalar", {"new_shape": [0]}, (Arg((1,)),)),
    ]


def _squeeze_samples() -> list[Sample]:
    return [
        Sample("all", {}, (Arg((1, 3, 1, 5)),)),
        Sample("some", {"squeeze_dims": [0, 2]}, (Arg((1, 3, 1, 5, 1)),)),
        Sample("negative", {"squeeze_dims": [-1]}, (Arg((1, 3, 5, 1)),)),
        Sample("channels", {"squeeze_dims": [3]}, (Arg((2, 3, 5, 1)),)),
        Sample("classes", {"squeeze_dims": [1, 2]}, (Arg((1, 1, 1, 1001)),)),
        Sample("to_scalar", {}, (Arg((1, 1)),)),
        Sample("none", {}, (Arg((2, 3)),)),
        Sample("i32", {}, (Arg((1, 7, 1), DType.I32, -9, 9),)),
    ]


def _expand_samples() -> list[Sample]:
    def sample(shape: tuple[int, ...], axis: int, dtype: DType = DType.F32) -> Sample:
        id = f"rank{len(shape)}_axis{axis}_{dtype.value}"
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg.of(axis, DType.I32)))

    return [
        sample((3, 5, 7), 0),
        sample((3, 5, 7), -1),
        sample((3, 5, 7), 1),
        sample((2, 3, 5, 4), -2),
        sample((5,), 1),
        sample((5,), 0),
        sample((), 0),
        sample((3, 5), 2, DType.I32),
        sample((3, 5), -3, DType.BOOL),
    ]


def as_reshape(node: Node, items: Items) -> Batched | str:
    """`OpDef.batch` of a node that gives its first operand another shape, in row-major order: items
    that lie one after another do so in any shape."""
    shape = node.outputs[0].shape
    wide = ReshapeAttrs(items.wide(shape))
    return Batched(wide, op="RESHAPE", operands=(0,))


def _batch_reshape(node: Node, items: Items) -> Batched | str:
    found = rows_of(node, items, (0,), 0) or as_reshape(node, items)
    shape = node.optional_input(1)
    if isinstance(found, str) or shape is None:
        return found
    wide = np.array(found.attributes.new_shape, shape.dtype.numpy)
    return Batched(node.attrs, {1: wide})


def _batch_squeeze(node: Node, items: Items) -> Batched | str:
    rank = len(node.input(0).shape)
    dropped = {normal_axis("SQUEEZE", a, rank) for a in node.attrs.squeeze_dims}
    if dropped and 0 not in dropped:
        return Batched(node.attrs)
    return as_reshape(node, items)


def _batch_expand(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,), 0)
    if refused is not None:
        return refused
    where = normal_axis("EXPAND_DIMS", integers(node.const(1))[0], len(node.outputs[0].shape))
    return Batched(node.attrs) if where else as_reshape(node, items)


OPS = (
    OpDef(
        "RESHAPE", _parse_reshape, _infer_reshape, _reference_reshape, _reshape_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True), movement=Movement(is_view=True),
        batch=_batch_reshape, positions=reshaped
    ),
    OpDef(
        "SQUEEZE", _parse_squeeze, _infer_squeeze, _reference_squeeze, _squeeze_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True), file=FileForm(max_version=2),
        movement=Movement(is_view=True), batch=_batch_squeeze, positions=reshaped
    ),
    OpDef(
        "EXPAND_DIMS", no_attrs, _infer_expand, _reference_expand, _expand_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True), movement=Movement(is_view=True),
        batch=_batch_expand, positions=reshaped, file=FileForm(result_type=0)
    ),
)  # fmt: skip
