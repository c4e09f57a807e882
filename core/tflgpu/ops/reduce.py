"""Reductions over axes, cumulative sums, positions of extremes.

TFLite versions: MEAN, REDUCE_MAX, REDUCE_MIN 1-3; SUM, REDUCE_PROD 1-2; ARG_MAX, ARG_MIN 1-3; the
others 1. Operand 1 holds the axes and must be constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.affine import is_plain
from tflgpu.ops.axes import const_integer, const_integers, integers, normal_axis, present
from tflgpu.ops.axes import take_operands as take
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Draw,
    Fields,
    FileForm,
    Movement,
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.elementwise import FLOATS, QUANTIZED, WHOLE, check_dtype, check_unscaled, widen
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import lifted, next_axes, rows_of
from tflgpu.ops.positions import Along, Positions, axes_from, highest, lowest
from tflgpu.ops.stored_product import of_product
from tflgpu.ops.stored_total import of_mean, of_nothing, of_sum
from tflgpu.values import evolve, frozen

_NUMBERS = FLOATS | WHOLE | QUANTIZED
_BOOL = frozenset({DType.BOOL})


@frozen
class Reduce:
    """Whether reduced dimensions stay as 1."""

    keep_dims: bool


def _parse_reduce(fields: Fields) -> Reduce:
    return Reduce(fields.flag("keep_dims"))


def reduced_axes(op: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, each once, in order. A scalar has none to reduce.

    Raises:
        ModelError: one is outside [-rank, rank).
    """
    if rank == 0:
        return ()
    return tuple(sorted({normal_axis(op, axis, rank) for axis in axes}))


def reduced_shape(shape: Shape, axes: Sequence[int], keep_dims: bool) -> Shape:
    """What is left of a shape when ``axes`` are reduced."""
    if keep_dims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer_reduce(op: str, allowed: frozenset[DType]) -> Callable[..., list[TensorSpec]]:
    def infer(attributes: Reduce, operands: Operands) -> list[TensorSpec]:
        x, axes = take(op, operands, 2)
        check_dtype(op, x.dtype, allowed)
        found = reduced_axes(op, const_integers(op, axes, "the axes"), x.rank)
        return [TensorSpec(reduced_shape(x.shape, found, attributes.keep_dims), x.dtype)]

    return infer


def _total(x: Array, axes: tuple[int, ...]) -> Array:
    # The sum in f64 is the number that sums in any order should come near.
    kind = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.sum(x, axes, kind, keepdims=True))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if x.dtype.kind == "f":
        # A sum beyond the operand's type is infinite, and so is the mean.
        return np.asarray(_total(x, axes).astype(x.dtype) / np.asarray(count, np.float64))
    total = np.sum(x, axes, np.int64, keepdims=True)
    return np.asarray(np.sign(total) * (np.abs(total) // max(count, 1)))


def _product(x: Array, axes: tuple[int, ...]) -> Array:
    kind = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.prod(x, axes, kind, keepdims=True))


def _reference_reduce(
    op: str, fn: Callable[[Array, tuple[int, ...]], Array], scaled: bool
) -> Callable[..., list[Array]]:
    def reference(attributes: Reduce, arrays: Arrays) -> list[Array]:
        x = present(arrays[0])
        if scaled:
            check_unscaled(op, x)
        axes = reduced_axes(op, integers(present(arrays[1])), x.ndim)
        if not axes:
            return [x.copy()]
        shape = reduced_shape(x.shape, axes, attributes.keep_dims)
        return [fn(widen(x), axes).astype(x.dtype, copy=False).reshape(shape)]

    return reference


@frozen
class CumSum:
    """``exclusive``: an element is not part of its own sum; ``reverse``: sums from the end."""

    exclusive: bool
    reverse: bool


def _parse_cumsum(fields: Fields) -> CumSum:
    return CumSum(fields.flag("exclusive"), fields.flag("reverse"))


def _infer_cumsum(attributes: CumSum, operands: Operands) -> list[TensorSpec]:
    x, axis = take("CUMSUM", operands, 2)
    check_dtype("CUMSUM", x.dtype, FLOATS | WHOLE)
    normal_axis("CUMSUM", const_integer("CUMSUM", axis, "the axis"), x.rank)
    return [x.spec]


def _reference_cumsum(attributes: CumSum, arrays: Arrays) -> list[Array]:
    x, (axis,) = present(arrays[0]), integers(present(arrays[1]))
    kind = np.float64 if x.dtype.kind == "f" else x.dtype
    ordered = np.flip(x, axis) if attributes.reverse else x
    sums = np.cumsum(ordered, axis, kind)
    if attributes.exclusive:
        # Moved on by one place. Taking the element off again would leave NaN of an infinity.
        sums = np.roll(sums, 1, axis)
        sums[(slice(None),) * normal_axis("CUMSUM", axis, x.ndim) + (slice(0, 1),)] = 0
    return [np.ascontiguousarray(np.flip(sums, axis) if attributes.reverse else sums, x.dtype)]


@frozen
class ArgExtreme:
    """The type of the positions: i32 or i64."""

    output: DType


def _parse_arg(fields: Fields) -> ArgExtreme:
    code = fields.integer("output_type", DType.I32.tflite)
    for dtype in (DType.I32, DType.I64):
        if dtype.tflite == code:
            return ArgExtreme(dtype)
    raise ModelError(f"{fields.op}: output_type {code} is neither int32 nor int64")


def _infer_arg(op: str) -> Callable[..., list[TensorSpec]]:
    def infer(attributes: ArgExtreme, operands: Operands) -> list[TensorSpec]:
        x, axis = take(op, operands, 2)
        check_dtype(op, x.dtype, _NUMBERS | _BOOL)
        at = normal_axis(op, const_integer(op, axis, "the axis"), x.rank)
        if x.shape[at] == 0:
            raise ModelError(f"{op}: axis {at} of shape {list(x.shape)} is empty")
        return [TensorSpec(reduced_shape(x.shape, (at,), False), attributes.output)]

    return infer


def _reference_arg(fn: Callable[..., Array], last: float) -> Callable[..., list[Array]]:
    def reference(attributes: ArgExtreme, arrays: Arrays) -> list[Array]:
        x, (axis,) = present(arrays[0]), integers(present(arrays[1]))
        if x.dtype.kind == "f":
            # As in TFLite a NaN is chosen only where there is nothing else (docs/nan.md).
            x = np.where(np.isnan(x), x.dtype.type(last), x)
        return [np.asarray(fn(x, axis)).astype(attributes.output.numpy, copy=False)]

    return reference


# Samples


def _axes(*axes: int) -> Arg:
    return Arg.of(axes, DType.I32)


def _reduce_samples(
    dtype: DType = DType.F32, low: float = -2.0, high: float = 2.0, *, long: bool = True
) -> list[Sample]:
    def sample(name: str, shape: Shape, axes: Arg, keep: bool = True) -> Sample:
        args = (Arg(shape, dtype, low, high), axes)
        count = 1
        for axis in reduced_axes(name, integers(present(axes.data)), len(shape)):
            count *= shape[axis]
        return Sample(name, {"keep_dims": keep}, args, accumulates=count)

    found = [
        sample("spatial", (1, 5, 7, 6), _axes(1, 2)),
        sample("spatial_drop", (2, 5, 7, 3), _axes(1, 2), False),
        sample("channels", (2, 5, 3, 7), _axes(3)),
        sample("channels_drop", (2, 3, 5, 7), _axes(3), False),
        sample("negative", (1, 3, 5, 6), _axes(-1, -3)),
        sample("duplicate", (1, 3, 5, 6), _axes(1, -3, 1), False),
        sample("width", (2, 3, 5, 8), _axes(2), False),
        sample("batch", (3, 2, 5, 6), _axes(0), False),
        sample("all", (2, 3, 5, 6), _axes(0, 1, 2, 3), False),
        sample("height_channels", (2, 5, 3, 6), _axes(1, 3), False),
        sample("rank2", (3, 13), _axes(1), False),
        sample("rank1", (11,), Arg.of(0, DType.I32), False),
        sample("rank3_drop_to_5", (2, 5, 9), _axes(2), False),
        sample("rank5", (2, 3, 2, 3, 5), _axes(1, 3)),
    ]
    if long:
        found += [
            sample("image", (1, 71, 73, 6), _axes(1, 2)),
            sample("whole_image", (1, 97, 101, 3), _axes(1, 2, 3), False),
            sample("row_of_1001", (1, 1001), _axes(1)),
        ]
    return found


def _number_samples() -> list[Sample]:
    ints = _reduce_samples(DType.I32, -9, 9, long=False)
    return [
        *_reduce_samples(),
        *(evolve(s, id=f"i32_{s.id}") for s in ints if s.id in ("spatial", "channels_drop")),
    ]


def _logic_samples() -> list[Sample]:
    return _reduce_samples(DType.BOOL, long=False)


def _cumsum_samples() -> list[Sample]:
    def sample(
        name: str, shape: Shape, axis: int, dtype: DType = DType.F32, **flags: bool
    ) -> Sample:
        args = (Arg(shape, dtype, -4, 4), Arg.of(axis, DType.I32))
        return Sample(name, flags, args, accumulates=shape[axis])

    return [
        sample("height", (1, 5, 7, 6), 1),
        sample("width", (2, 3, 5, 8), 2),
        sample("channels", (2, 3, 5, 7), 3),
        sample("channels_exclusive", (3, 6), -1, exclusive=True),
        sample("channels_reverse", (3, 7), 1, reverse=True),
        sample("channels_both", (2, 10), -1, exclusive=True, reverse=True),
        sample("batch_both", (5, 3, 6), 0, exclusive=True, reverse=True),
        sample("reverse", (2, 7, 3), 1, reverse=True),
        sample("exclusive", (2, 7, 3), -2, exclusive=True),
        sample("rank1", (13,), 0),
        sample("i32", (3, 5, 7), 1, DType.I32),
    ]


def _arg_samples() -> list[Sample]:
    def sample(
        name: str, shape: Shape, axis: int, dtype: DType = DType.F32, output: DType = DType.I32
    ) -> Sample:
        args = (Arg(shape, dtype, -3, 3), Arg.of(axis, DType.I32))
        return Sample(name, {"output_type": output.tflite}, args)

    return [
        sample("channels", (1, 5, 7, 6), 3),
        sample("channels_21", (2, 5, 6, 21), -1),
        sample("row_of_1001", (1, 1001), 1),
        sample("rows", (3, 131), -1),
        sample("width", (2, 3, 5, 8), 2),
        sample("height", (1, 7, 5, 3), 1),
        sample("rank1", (11,), 0),
        sample("batch", (5, 3, 6), 0),
        sample("i32_ties", (3, 5, 17), 2, DType.I32),
        sample("i32_ties_inside", (3, 17, 5), 1, DType.I32),
        sample("i64", (2, 5, 9), -1, output=DType.I64),
    ]


def _reduce_op(
    name: str,
    fn: Callable[[Array, tuple[int, ...]], Array],
    samples: Callable[[], Sequence[Sample]],
    *,
    allowed: frozenset[DType] = _NUMBERS,
    accuracy: Accuracy = Accuracy.ACCUMULATE,
    version: int = 1,
    scaled: bool = True,
    keeps_values: bool = False,
    generate: Callable[[Draw], Sample] | None = None,
    results: Callable[[Node], Any] | None = None,
    neutral: Callable[[DType], float] = lambda dtype: 0,
) -> OpDef:
    return OpDef(
        name,
        _parse_reduce,
        _infer_reduce(name, allowed),
        _reference_reduce(name, fn, scaled),
        samples,
        accuracy=accuracy,
        file=FileForm(max_version=version),
        movement=Movement(copies=_copies, keeps_values=keeps_values),
        quantized=Quantized(results=results),
        generate=generate,
        batch=_batch_reduce,
        positions=partial(_positions, neutral),
    )


def _copies(node: Node) -> int | None:
    """Over dimensions of size 1 nothing is summed."""
    data, shape = node.input(1).data, node.input(0).shape
    if data is None or not is_plain(node):
        return None
    axes = reduced_axes(node.op, integers(data), len(shape))
    return 0 if math.prod(shape[axis] for axis in axes) == 1 else None


def _extreme(fn: Callable[..., Array]) -> Callable[[Array, tuple[int, ...]], Array]:
    def extreme(x: Array, axes: tuple[int, ...]) -> Array:
        if x.dtype == np.bool_ or all(x.shape[a] for a in axes):
            return np.asarray(fn(x, axis=axes, keepdims=True))
        # Of no elements TFLite gives what its kernels begin with; XNNPACK's begin with infinity.
        if x.dtype.kind == "f":
            first: Any = -np.inf if fn is np.max else np.inf
        else:
            first = np.iinfo(x.dtype).min if fn is np.max else np.iinfo(x.dtype).max
        return np.full(reduced_shape(x.shape, axes, True), first, x.dtype)

    return extreme


def _batch_reduce(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    shape, axes = node.input(0).shape, node.const(1)
    if refused is not None or 0 not in reduced_axes(node.op, integers(axes), len(shape)):
        return refused or Batched(node.attrs)
    others = axes.reshape(-1)[axes.reshape(-1) % len(shape) != 0]
    if shape[0] == 1 and others.size:  # nothing is reduced along an axis of 1
        shapes = {} if node.attrs.keep_dims else {0: items.wide(shape)}
        return Batched(node.attrs, {1: others}, shapes=shapes)
    return lifted(node, items, (0,), constants={1: next_axes(axes, len(shape))})


def _batch_along(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    axis, rank = node.const(1), len(node.input(0).shape)
    if refused is None and integers(axis)[0] % rank == 0:
        return lifted(node, items, (0,), constants={1: next_axes(axis, rank)})
    return refused or Batched(node.attrs)


def _positions(neutral: Callable[[DType], float], node: Node, cut: Node) -> Positions:
    """Of an op that puts all positions along some axes together."""
    x, keep = node.input(0), getattr(node.attrs, "keep_dims", False)
    axes = reduced_axes(node.op, integers(node.const(1)), len(x.shape))
    fill = Along(fill=neutral(x.dtype))
    found = [
        fill if axis in axes else Along(axis if keep else axis - sum(a < axis for a in axes))
        for axis in range(len(x.shape))
    ]
    return Positions([found, [None]], averaged=axes if node.op == "MEAN" else ())


def _positions_cumsum(node: Node, cut: Node) -> Positions:
    x, (axis,) = node.input(0), integers(node.const(1))
    found = axes_from(0, len(x.shape))
    if node.attrs.reverse:
        found[axis] = Along(axis % len(x.shape), 0)
    return Positions([found, [None]])


OPS = (
    _reduce_op("MEAN", _mean, _reduce_samples, version=3, generate=draws.reduce, results=of_mean),
    _reduce_op("SUM", _total, _number_samples, version=2, generate=draws.reduce, results=of_sum),
    _reduce_op("REDUCE_PROD", _product,
               lambda: _reduce_samples(low=0.8, high=1.25, long=False), version=2,
               results=of_product, neutral=lambda dtype: 1),
    # Extremes of stored numbers are those of the real ones: a scale is positive.
    _reduce_op("REDUCE_MAX", _extreme(np.max), _number_samples, accuracy=Accuracy.EXACT,
               version=3, scaled=False, keeps_values=True, generate=draws.reduce,
               results=lambda node: of_nothing(node, lambda result: result.low), neutral=lowest),
    _reduce_op("REDUCE_MIN", _extreme(np.min), _number_samples, accuracy=Accuracy.EXACT,
               version=3, scaled=False, keeps_values=True, generate=draws.reduce,
               results=lambda node: of_nothing(node, lambda result: result.high), neutral=highest),
    _reduce_op("REDUCE_ANY", _extreme(np.any), _logic_samples, allowed=_BOOL,
               accuracy=Accuracy.EXACT),
    _reduce_op("REDUCE_ALL", _extreme(np.all), _logic_samples, allowed=_BOOL,
               accuracy=Accuracy.EXACT, neutral=highest),
    OpDef("CUMSUM", _parse_cumsum, _infer_cumsum, _reference_cumsum, _cumsum_samples,
          accuracy=Accuracy.ACCUMULATE, batch=_batch_along, positions=_positions_cumsum),
    OpDef(
        "ARG_MAX", _parse_arg, _infer_arg("ARG_MAX"), _reference_arg(np.argmax, -np.inf),
        _arg_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=3, result_type="output_type"),
        contents=Contents(positions="output"), batch=_batch_along,
        positions=partial(_positions, lowest)
    ),
    OpDef(
        "ARG_MIN", _parse_arg, _infer_arg("ARG_MIN"), _reference_arg(np.argmin, np.inf),
        _arg_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=3, result_type="output_type"),
        contents=Contents(positions="output"), batch=_batch_along,
        positions=partial(_positions, highest)
    ),
)  # fmt: skip
