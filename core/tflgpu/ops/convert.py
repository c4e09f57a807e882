"""Conversions between element types: CAST, DEQUANTIZE, QUANTIZE.

TFLite versions: CAST 1-7, DEQUANTIZE 1-6, QUANTIZE 1-4.

What these three do is written in their tensors, not in their options. The reader of a file
therefore adds to an operator's `Fields`: ``output_dtype`` (`DType` of output 0), and
``input_quantization`` and ``output_quantization`` (`Quantization` of operand 0 and output 0, None
where there is none).
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
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
    Quantized,
    Sample,
)
from tflgpu.ops.elementwise import QUANTIZED, check_dtype
from tflgpu.ops.facets import NarrowTypes, copies_first
from tflgpu.ops.fixed_point import Multiplier, times
from tflgpu.ops.quantized import is_divisor
from tflgpu.ops.stored_functions import by_steps, rescaled
from tflgpu.values import frozen

_STORED = frozenset({DType.I8, DType.U8, DType.I16, DType.I32})


@frozen
class CastAttrs:
    """The result's type."""

    output: DType


@frozen
class Dequantize:
    """How whole numbers stand for real ones; None for an f16 operand."""

    quantization: Quantization | None


@frozen
class Quantize:
    """The result's type and quantization; ``source`` is the operand's where it is quantized."""

    output: DType
    quantization: Quantization
    source: Quantization | None = None


def _dtype(fields: Fields, option: str | None) -> DType:
    given = fields.get("output_dtype")
    if isinstance(given, DType):
        return given
    if option is None or fields.get(option) is None:
        raise ModelError(f"{fields.op}: the type of the result is not known")
    code = fields.integer(option)
    try:
        return DType.from_tflite(code)
    except KeyError:
        raise ModelError(f"{fields.op}: unknown tensor type {code}") from None


def _quantization(fields: Fields, name: str) -> Quantization | None:
    given = fields.get(name)
    if given is None or isinstance(given, Quantization):
        return given
    raise ModelError(f"{fields.op}: {name} is {shown(given)}, not a quantization")


def _parse_cast(fields: Fields) -> CastAttrs:
    return CastAttrs(_dtype(fields, "out_data_type"))


def _infer_cast(attributes: CastAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("CAST", operands, 1)
    return [TensorSpec(x.shape, attributes.output)]


def _reference_cast(attributes: CastAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    kind = attributes.output.numpy
    if x.dtype.kind == "c" and kind.kind != "c":
        x = x.real
    if kind.kind in "iu" and x.dtype.kind == "f":
        # As in TFLite what is out of range is clamped, and a NaN becomes the largest number.
        info = np.iinfo(kind)
        low, high = float(info.min), float(info.max)
        wide = np.trunc(x.astype(np.float64))
        wide = np.clip(np.where(np.isnan(wide), high, wide), low, high)
        # The largest i64 is no f64.
        x = np.where(wide >= high, info.max, np.where(wide >= high, 0, wide).astype(kind))
    return [np.asarray(x).astype(kind)]


#: A tensor without a scale has one of 0 in TFLite.
_NO_SCALE = Quantization((0.0,), (0,))


def _parse_dequantize(fields: Fields) -> Dequantize:
    found, types = _quantization(fields, "input_quantization"), fields.get("operand_types")
    unscaled = found is None and isinstance(types, tuple) and types and types[0] is not None
    if unscaled and types[0][0] in QUANTIZED:
        return Dequantize(_NO_SCALE)
    return Dequantize(found)


def _check_axis(op: str, quantization: Quantization, shape: Shape) -> None:
    if not quantization.per_axis:
        return
    axis, count = quantization.axis, len(quantization.scale)
    if axis >= len(shape) or shape[axis] != count:
        raise ModelError(f"{op}: {count} scales along axis {axis} of shape {list(shape)}")


def _infer_dequantize(attributes: Dequantize, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("DEQUANTIZE", operands, 1)
    check_dtype("DEQUANTIZE", x.dtype, _STORED | {DType.F16, DType.F32})
    if not x.dtype.is_float:
        if attributes.quantization is None:
            raise ModelError(f"DEQUANTIZE: the {x.dtype.value} operand has no scale")
        _check_axis("DEQUANTIZE", attributes.quantization, x.shape)
    return [TensorSpec(x.shape, DType.F32)]


def _reference_dequantize(attributes: Dequantize, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    if x.dtype.kind == "f":
        return [x.astype(np.float32)]
    assert attributes.quantization is not None
    return [attributes.quantization.dequantize(x)]


def _parse_quantize(fields: Fields) -> Quantize:
    quantization = _quantization(fields, "output_quantization")
    if quantization is None:
        raise ModelError("QUANTIZE: the result has no scale")
    source = _quantization(fields, "input_quantization")
    return Quantize(_dtype(fields, None), quantization, source)


def _infer_quantize(attributes: Quantize, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("QUANTIZE", operands, 1)
    check_dtype("QUANTIZE", x.dtype, _STORED | {DType.F32, DType.F16})
    check_dtype("QUANTIZE", attributes.output, _STORED)
    _check_axis("QUANTIZE", attributes.quantization, x.shape)
    for scale in attributes.quantization.scale:
        if not is_divisor(scale):
            raise ModelError(f"QUANTIZE: nothing can be divided by the result's scale {scale}")
    if not x.dtype.is_float and attributes.source is None:
        raise ModelError(f"QUANTIZE: the {x.dtype.value} operand has no scale")
    return [TensorSpec(x.shape, attributes.output)]


def _requantized(attributes: Quantize, source: Quantization, x: Array) -> Array:
    """Stored numbers on another scale, as TFLite's kernel multiplies them: in whole numbers, since
    f32 does not hold all of 32 bits."""
    a, b = (float(np.float32(q.scale[0])) for q in (source, attributes.quantization))
    by, info = Multiplier.of(a / b), np.iinfo(attributes.output.numpy)
    steps = times(x.astype(np.int64) - source.zero_point[0], by)
    found = np.clip(steps + attributes.quantization.zero_point[0], info.min, info.max)
    return np.asarray(found.astype(attributes.output.numpy))


def _reference_quantize(attributes: Quantize, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    info = np.iinfo(attributes.output.numpy)
    if x.dtype.kind != "f":
        assert attributes.source is not None
        if not (attributes.source.per_axis or attributes.quantization.per_axis):
            return [_requantized(attributes, attributes.source, x)]
        x = attributes.source.dequantize(x)
    scale, zero_point = attributes.quantization.broadcast(x.ndim)
    # XNNPACK and TFLite's optimized kernels multiply, and of two steps take the even one.
    inverse = np.float32(1) / np.asarray(scale, np.float32)
    with np.errstate(over="ignore"):
        steps = np.rint(x.astype(np.float32) * inverse).astype(np.float64) + zero_point
    # There is no NaN to store. TFLite's XNNPACK kernels store the largest number.
    steps = np.where(np.isnan(steps), info.max, steps)
    return [np.clip(steps, info.min, info.max).astype(attributes.output.numpy)]


# Samples


def _cast_samples() -> list[Sample]:
    def sample(
        source: DType, target: DType, *shape: int, low: float = -9, high: float = 9
    ) -> Sample:
        name = f"{source.value}_to_{target.value}_rank{len(shape)}"
        fields = {"in_data_type": source.tflite, "out_data_type": target.tflite}
        return Sample(name, fields, (Arg(shape, source, low, high),), version=5)

    f32, f16, i32, boolean = DType.F32, DType.F16, DType.I32, DType.BOOL
    return [
        sample(f32, i32, 1, 5, 7, 3),
        sample(f32, i32, 3, 13),
        sample(i32, f32, 2, 3, 5, 6),
        sample(i32, f32, 7),
        sample(f32, boolean, 1, 5, 3, 7, low=0, high=2),
        sample(i32, boolean, 3, 13, low=0, high=2),
        sample(boolean, f32, 2, 3, 5, 7),
        sample(boolean, i32, 3, 5),
        sample(f32, f16, 3, 13),
        sample(f16, f32, 1, 3, 5, 6),
        sample(DType.U8, f32, 1, 5, 7, 3, low=0, high=256),
        sample(f32, DType.U8, 3, 13, low=-50, high=300),
        sample(i32, DType.I8, 3, 5, low=-300, high=600),
        sample(DType.I64, i32, 3, 5),
    ]


def _dequantize_samples() -> list[Sample]:
    def sample(dtype: DType, *shape: int, quantization: Quantization, version: int = 2) -> Sample:
        info = np.iinfo(dtype.numpy)
        arg = Arg(shape, dtype, info.min, info.max)
        name = f"{dtype.value}_rank{len(shape)}"
        return Sample(name, {"input_quantization": quantization}, (arg,), version=version)

    return [
        Sample("f16", {}, (Arg((1, 5, 7, 3), DType.F16, -4, 4),), version=3),
        sample(DType.I8, 1, 5, 7, 3, quantization=Quantization((0.05,), (-7,))),
        sample(DType.I8, 13, quantization=Quantization((0.5,), (0,))),
        sample(DType.U8, 2, 3, 5, 6, quantization=Quantization((0.02,), (128,))),
        sample(DType.I16, 3, 7, quantization=Quantization((1e-3,), (0,)), version=3),
    ]


def _quantize_samples() -> list[Sample]:
    def sample(dtype: DType, *shape: int, quantization: Quantization, reach: float) -> Sample:
        fields = {"output_dtype": dtype, "output_quantization": quantization}
        arg = Arg(shape, low=-reach, high=reach)
        return Sample(f"{dtype.value}_rank{len(shape)}", fields, (arg,), version=2)

    return [
        sample(DType.I8, 1, 5, 7, 3, quantization=Quantization((0.05,), (-7,)), reach=5),
        sample(DType.I8, 13, quantization=Quantization((0.5,), (0,)), reach=80),
        sample(DType.U8, 2, 3, 5, 6, quantization=Quantization((0.02,), (128,)), reach=3),
        sample(DType.I16, 3, 7, quantization=Quantization((1e-3,), (0,)), reach=40),
    ]


# DEQUANTIZE is compared as loosely as TRANSCENDENTAL because TFLite's optimized kernels subtract
# the scaled zero point after multiplying, which cancels near zero.
OPS = (
    OpDef(
        "CAST", _parse_cast, _infer_cast, _reference_cast, _cast_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=7), elementwise=True, quantized=Quantized(stored=True),
        movement=Movement(copies=copies_first), contents=Contents(held=NarrowTypes.CLAMPED)
    ),
    OpDef(
        "DEQUANTIZE", _parse_dequantize, _infer_dequantize, _reference_dequantize,
        _dequantize_samples, accuracy=Accuracy.TRANSCENDENTAL,
        file=FileForm(max_version=6, result_type=DType.F32), elementwise=True,
        quantized=Quantized(stored=True)
    ),
    OpDef(
        "QUANTIZE", _parse_quantize, _infer_quantize, _reference_quantize, _quantize_samples,
        accuracy=Accuracy.QUANTIZED, file=FileForm(max_version=4), elementwise=True,
        quantized=Quantized(
            stored=True, results=by_steps(rescaled, lambda attributes, x: x, converts=True)
        ),
        contents=Contents(held=NarrowTypes.CLAMPED)
    ),
)  # fmt: skip
