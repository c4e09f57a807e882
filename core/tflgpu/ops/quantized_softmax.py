"""QUANTIZED_SOFTMAX: SOFTMAX of 16-bit numbers, by tables.

No file has this op. TFLite computes SOFTMAX of 16-bit tensors in whole numbers, with tables of
exp(x) and of 1 / (1 + x), between whose 513 entries lie straight lines: up to dozens of steps from
the rounded result. The float view of a quantized model (`tflgpu.passes.float_view`) puts this op in
its place, whose operands are the real numbers, which are whole multiples of a scale, and two
tables:

    e = exponentials[(largest - x) / scale]     32767 is 1
    r = reciprocals[sum of e, in 17 bits]       32767 is 1
    result = e * r, shifted, in steps of 1 / 32768

Source: TFLite's `kernels/internal/reference/softmax.h` (SoftmaxInt16) and `kernels/activations.cc`
(SoftmaxPrepare).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Arg, Arrays, Draw, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.fixed_point import Multiplier, times
from tflgpu.ops.int16_tables import lines
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.values import frozen

OP = "QUANTIZED_SOFTMAX"
#: Entries of a table.
SIZE = 1 << 16
#: The steps of a result.
STEP = 2.0**-15
#: From the most elements that a sum in 32 bits has room for.
LONGEST = 1 << 16
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_ONE = Quantization((2 / 65535,), (0,))


@frozen
class QuantizedSoftmax:
    """What the operand's numbers are."""

    operand: QuantizeAndDequantize


@lru_cache(16)
def exponentials(scale: float, beta: float) -> Array:
    """exp(-beta * scale * n) for every n below 65536, i32; 10 and more below the largest is next to
    nothing."""
    reach = 10 / 65535
    by = Multiplier.of(float(np.float32(scale) * np.float32(beta)) / reach)
    below = times(-np.arange(SIZE), by)
    table = lines(np.exp, Quantization((reach,), (_HIGH,)), _ONE, np.float64)
    return np.asarray(table[np.clip(below + _HIGH, _LOW, _HIGH) - _LOW], np.int32)


@lru_cache(16)
def reciprocals() -> Array:
    """1 / (1 + n / 65535) for every n below 65536, i32."""
    table = lines(lambda x: 1 / (1 + x), Quantization((1 / 65535,), (_LOW,)), _ONE, np.float64)
    return np.asarray(table, np.int32)


def _infer(attributes: QuantizedSoftmax, operands: Operands) -> list[TensorSpec]:
    x, *tables = take_operands(OP, operands, 3)
    check_dtype(OP, x.dtype, REALS)
    for i, table in enumerate(tables, 1):
        if table.dtype is not DType.I32 or table.shape != (SIZE,):
            raise ModelError(f"{OP}: the table (operand {i}) is {table.spec}; i32 [{SIZE}] needed")
    if not x.rank or x.shape[-1] >= LONGEST:
        raise ModelError(f"{OP}: rows of {x.spec} are none, or too long")
    return [x.spec]


def _reference(attributes: QuantizedSoftmax, arrays: Arrays) -> list[Array]:
    x, exponentials, reciprocals = (present(a) for a in arrays)
    steps = steps_of(attributes.operand, x).astype(np.int64)
    below = steps.max(-1, keepdims=True, initial=attributes.operand.low) - steps
    e = exponentials[below].astype(np.int64)
    total = np.maximum(e.sum(-1, keepdims=True), 1)
    # Shifted so that its highest bit is bit 30.
    left = 31 - np.frexp(total.astype(np.float64))[1].astype(np.int64)
    place = ((total << left) + (1 << 13) >> 14) - (1 << 16)
    r = reciprocals[np.clip(place, 0, SIZE - 1)].astype(np.int64)
    right = 30 - left
    found = np.clip((e * r + (np.int64(1) << (right - 1))) >> right, 0, _HIGH)
    return [np.asarray(found * np.float32(STEP)).astype(x.dtype)]


def _sample(id: str, shape: tuple[int, ...], scale: float = 1 / 4096) -> Sample:
    return Sample.of(
        id,
        QuantizedSoftmax(QuantizeAndDequantize(scale, _LOW, _HIGH)),
        Arg(shape, low=-6, high=7),
        Arg.of(exponentials(scale, 1.0), DType.I32),
        Arg.of(reciprocals(), DType.I32),
    )


def _samples() -> list[Sample]:
    return [_sample("image", (2, 3, 5, 7)), _sample("long", (2, 301))]


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(9) for _ in range(draw.integer(1, 4)))
    return _sample("generated", shape, draw.choice((1 / 4096, 1 / 8192)))


OPS = (OpDef(OP, graph_attributes, _infer, _reference, _samples, generate=_generate),)
