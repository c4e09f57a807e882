"""SHAPE, RANK, FILL, RANGE, BROADCAST_ARGS: tensors made of sizes, or of one number.

SHAPE, RANK, BROADCAST_ARGS: TFLite version 1; FILL: 1-5; RANGE: 1-2. Shape inference needs the
operands of FILL and RANGE to be constants, so that everything after them has a size that is known
before the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import (
    INDEX_TYPES,
    const_integers,
    integers,
    need_rank,
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
from tflgpu.values import frozen


@frozen
class ShapeAttrs:
    """The type of the result, i32 or i64."""

    out_type: DType = DType.I32


def _parse_shape(fields: Fields) -> ShapeAttrs:
    code = fields.integer("out_type")
    # Files from before the option existed hold its default, the code of f32.
    types = {0: DType.I32, DType.I32.tflite: DType.I32, DType.I64.tflite: DType.I64}
    if code not in types:
        raise ModelError(f"SHAPE: out_type code {code} is neither i32 nor i64")
    return ShapeAttrs(types[code])


def _infer_shape(attributes: ShapeAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("SHAPE", operands, 1)
    return [TensorSpec((x.rank,), attributes.out_type)]


def _reference_shape(attributes: ShapeAttrs, arrays: Arrays) -> list[Array]:
    return [np.array(present(arrays[0]).shape, attributes.out_type.numpy)]


def _infer_rank(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    take_operands("RANK", operands, 1)
    return [TensorSpec((), DType.I32)]


def _reference_rank(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [np.array(present(arrays[0]).ndim, np.int32)]


def _infer_fill(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    dims, value = take_operands("FILL", operands, 2)
    shape = const_integers("FILL", dims, "dims (operand 0)")
    if any(d < 0 for d in shape):
        raise ModelError(f"FILL: dims {listed(shape)} must not be negative")
    need_rank("FILL", value, "value (operand 1)", 0)
    return [TensorSpec(shape, value.dtype)]


def _reference_fill(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    value = present(arrays[1])
    return [np.full(integers(present(arrays[0])), value, value.dtype)]


def _range_size(start: Array, limit: Array, delta: Array) -> int:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    if start.dtype.kind == "f" and not np.isfinite([first, last, step]).all():
        raise ModelError(f"RANGE: from {first} to {last} by {step}: these must be finite")
    if step == 0 or (last != first and (last < first) != (step < 0)):
        raise ModelError(f"RANGE: from {first} to {last} by {step} never ends")
    if start.dtype.kind == "f":
        # In the operands' own precision, as TFLite does: 3.5 / 0.7 is exactly 5 in f32.
        with np.errstate(over="ignore"):
            count = float(abs((last - first) / step))
        if not math.isfinite(count):
            raise ModelError(f"RANGE: from {first} to {last} by {step} has too many elements")
        return math.ceil(count)
    return -(-abs(int(last) - int(first)) // abs(int(step)))


def _infer_range(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    args = take_operands("RANGE", operands, 3)
    names = ("start (operand 0)", "limit (operand 1)", "delta (operand 2)")
    for arg, name in zip(args, names, strict=True):
        need_rank("RANGE", arg, name, 0)
        if arg.dtype in (DType.BOOL, DType.C64, DType.C128):
            raise ModelError(f"RANGE: {name} is {arg.dtype.value}, not a number on a line")
        if arg.dtype is not args[0].dtype:
            raise ModelError(f"RANGE: {name} is {arg.dtype.value}, start {args[0].dtype.value}")
    start, limit, delta = (a.const("RANGE", n) for a, n in zip(args, names, strict=True))
    return [TensorSpec((_range_size(start, limit, delta),), args[0].dtype)]


def _reference_range(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    start, limit, delta = (present(a) for a in arrays)
    size = _range_size(start, limit, delta)
    # Added up step by step, as TFLite does: f32 rounds differently from start + i * delta.
    steps = np.full(size, delta.reshape(-1)[0], start.dtype)
    steps[:1] = start.reshape(-1)[0]
    with np.errstate(over="ignore"):
        return [np.add.accumulate(steps, dtype=start.dtype)]


def _infer_broadcast(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    a, b = take_operands("BROADCAST_ARGS", operands, 2)
    for i, shape in enumerate((a, b)):
        need_rank("BROADCAST_ARGS", shape, f"operand {i}", 1)
        if shape.dtype not in INDEX_TYPES or shape.dtype is not a.dtype:
            raise ModelError(f"BROADCAST_ARGS: operands are {a.dtype.value} and {b.dtype.value}")
    if a.data is not None and b.data is not None:
        try:
            _broadcast(a.data, b.data)
        except InputError as error:
            raise ModelError(f"{error} (constant shapes)") from None
    return [TensorSpec((max(a.shape[0], b.shape[0]),), a.dtype)]


def _broadcast(a: Array, b: Array) -> Array:
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    padded = np.concatenate([np.ones(len(long) - len(short), short.dtype), short])
    if ((padded != long) & (padded != 1) & (long != 1)).any():
        raise InputError(
            f"BROADCAST_ARGS: shapes {listed(integers(a))} and {listed(integers(b))} do not "
            "broadcast"
        )
    return np.asarray(np.where(padded == 1, long, padded), a.dtype)


def _reference_broadcast(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [_broadcast(present(arrays[0]), present(arrays[1]))]


def _broadcast_samples() -> list[Sample]:
    def sample(id: str, a: Sequence[int], b: Sequence[int], dtype: DType = DType.I32) -> Sample:
        return Sample(id, {}, (Arg.of(a, dtype), Arg.of(b, dtype)))

    return [
        sample("longer", [3, 1], [2, 1, 4]),
        sample("shorter", [2, 1, 4], [3, 1]),
        sample("none", [3, 0], [1]),
        sample("scalar", [3, 2], [], DType.I64),
        Sample("at_run_time", {}, (Arg((3,), DType.I32, 1, 2), Arg((5,), DType.I32, 1, 9))),
    ]


def _shape_samples() -> list[Sample]:
    wide = {"out_type": DType.I64.tflite}
    narrow = {"out_type": DType.I32.tflite}
    return [
        Sample("rank4", narrow, (Arg((2, 3, 5, 7)),)),
        Sample("rank1", narrow, (Arg((7,)),)),
        Sample("wide", wide, (Arg((3, 5)),)),
        Sample("of_i32", narrow, (Arg((3, 5), DType.I32, -9, 9),)),
        Sample("of_bool", wide, (Arg((3, 5, 1), DType.BOOL),)),
    ]


def _rank_samples() -> list[Sample]:
    return [Sample(f"rank{len(s)}", {}, (Arg(s),)) for s in ((), (3,), (2, 3), (2, 3, 5, 7))]


def _fill_samples() -> list[Sample]:
    def sample(
        id: str, dims: Sequence[int], dtype: DType = DType.F32, index: DType = DType.I32
    ) -> Sample:
        return Sample(id, {}, (Arg.of(dims, index), Arg((), dtype, -9, 9)))

    return [
        sample("rank4", [2, 3, 5, 7]),
        sample("rank1", [13]),
        sample("aligned", [3, 8]),
        sample("scalar", []),
        sample("wide_dims", [3, 5], index=DType.I64),
        sample("i32", [3, 5], DType.I32),
        sample("bool", [3, 5], DType.BOOL),
        Sample("const", {}, (Arg.of([3, 5], DType.I32), Arg.of(7.5))),
    ]


def _range_samples() -> list[Sample]:
    def sample(id: str, values: Sequence[float], dtype: DType = DType.I32) -> Sample:
        return Sample(id, {}, tuple(Arg.of(v, dtype) for v in values))

    return [
        sample("up", [0, 13, 1]),
        sample("step", [3, 18, 4]),
        sample("down", [5, -7, -3]),
        sample("exact", [0, 12, 3]),
        sample("floats", [0.0, 1.0, 0.1], DType.F32),
        sample("floats_down", [2.5, -1.0, -0.7], DType.F32),
    ]


OPS = (
    OpDef(
        "SHAPE", _parse_shape, _infer_shape, _reference_shape, _shape_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True, shape_only=True),
        file=FileForm(result_type="out_type")
    ),
    OpDef(
        "RANK", no_attrs, _infer_rank, _reference_rank, _rank_samples, accuracy=Accuracy.EXACT,
        contents=Contents(texts=True, shape_only=True), file=FileForm(result_type=DType.I32)
    ),
    OpDef(
        "FILL", no_attrs, _infer_fill, _reference_fill, _fill_samples, accuracy=Accuracy.EXACT,
        contents=Contents(texts=True), file=FileForm(max_version=5, result_type=1),
        movement=Movement(keeps_values=True)
    ),
    OpDef(
        "RANGE", no_attrs, _infer_range, _reference_range, _range_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=2, result_type=0)
    ),
    OpDef(
        "BROADCAST_ARGS", no_attrs, _infer_broadcast, _reference_broadcast, _broadcast_samples,
        accuracy=Accuracy.EXACT,
    ),
)  # fmt: skip
