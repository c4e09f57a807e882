"""QUANTIZED_ADD: ADD of 8-bit tensors on the numbers as they are stored.

No file has this op: with integer numerics it takes the place of an ADD
(`tflgpu.passes.float_view`). Both operands are brought to one scale with 20 bits behind the point,
added, and brought to the result's scale.

Source: TFLite's `kernels/add.cc` (PrepareGeneralQuantizedAdd for 8 bits) and `kernels/internal/
reference/integer_ops/add.h`; for u8, `reference/add.h`, whose arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arrays,
    Draw,
    OpDef,
    Quantized,
    Sample,
    graph_attributes,
)
from tflgpu.ops.elementwise import BYTES, infer_broadcast
from tflgpu.ops.fixed_point import Multiplier, clamp_limits, scaled, times
from tflgpu.ops.quantized import Integers
from tflgpu.values import frozen

OP = "QUANTIZED_ADD"
#: Bits behind the point of the sum.
POINT = 20


@frozen
class Term:
    """An operand or the result: the number that stands for 0, and what brings it to the sum's
    scale, or the sum to its own."""

    zero_point: int
    multiplier: Multiplier


@frozen
class QuantizedAdd:
    """The arithmetic; results are clamped to ``low`` and ``high``."""

    left: Term
    right: Term
    result: Term
    low: int
    high: int


def _arithmetic(values: Sequence[Value], activation: Activation) -> Union[QuantizedAdd, str]:
    """Of two operands and a result; or why there is none."""
    dtype = values[2].dtype
    if any(v.dtype is not dtype for v in values):
        return f"ADD: {' and '.join(v.dtype.value for v in values[:2])} give {dtype.value}"
    found = [scaled(v, BYTES) for v in values]
    quants = [q for q in found if isinstance(q, Quantization)]
    if len(quants) != len(found):
        return "ADD: " + next(q for q in found if isinstance(q, str))
    left, right, result = quants
    limits = clamp_limits(activation, result, dtype)
    if isinstance(limits, str):
        return f"ADD: {limits}"
    # Twice the larger scale, so that neither operand has to grow.
    widest = 2 * max(left.scale[0], right.scale[0])
    to_result = widest / (2.0**POINT * result.scale[0])
    if not 0 < to_result < 1:
        return f"ADD: the scale of the result, {result.scale[0]}, is too small for the operands'"
    return QuantizedAdd(
        Term(left.zero_point[0], Multiplier.of(left.scale[0] / widest)),
        Term(right.zero_point[0], Multiplier.of(right.scale[0] / widest)),
        Term(result.zero_point[0], Multiplier.of(to_result)),
        *limits,
    )


def _attributes(node: Node) -> Union[QuantizedAdd, str]:
    return _arithmetic([node.input(0), node.input(1), node.outputs[0]], node.attrs.activation)


def _reference(attributes: QuantizedAdd, arrays: Arrays) -> list[Array]:
    a, b = present(arrays[0]), present(arrays[1])
    total: Any = 0
    for array, term in ((a, attributes.left), (b, attributes.right)):
        steps = (array.astype(np.int64) - term.zero_point) << POINT
        total = total + times(steps, term.multiplier)
    stored = times(total, attributes.result.multiplier) + attributes.result.zero_point
    return [np.clip(stored, attributes.low, attributes.high).astype(a.dtype)]


# Samples

_RELUS = (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1)


def _sample(
    id: str,
    left: tuple[float, int],
    right: tuple[float, int],
    result: tuple[float, int],
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 5, 7, 3), (1, 5, 7, 3)),
    *,
    dtype: DType = DType.I8,
    activation: Activation = Activation.NONE,
    const: bool = False,
) -> Sample:
    info = np.iinfo(dtype.numpy)
    low, high = float(info.min), float(info.max) + 1
    values = [
        Value(0, "", (), dtype, quant=Quantization((float(np.float32(scale)),), (zero,)))
        for scale, zero in (left, right, result)
    ]
    args = (Arg(shapes[0], dtype, low, high), Arg(shapes[1], dtype, low, high, const=const))
    return Sample.of(id, _arithmetic(values, activation), *args)


def _samples() -> list[Sample]:
    coarse, fine, off = (0.05, -7), (0.013, 11), (0.07, 3)
    # Equal operands' scales and twice as coarse a result: every odd sum is a half.
    half, whole = (0.25, -3), (0.5, 6)
    return [
        _sample("same", coarse, fine, off),
        _sample("same_batch", fine, coarse, off, ((2, 3, 5, 8), (2, 3, 5, 8))),
        _sample("halves", half, half, whole, ((3, 13), (3, 13))),
        _sample("all_halves", half, half, whole, ((67, 1), (1, 71))),
        _sample("clamped", coarse, coarse, (0.031, 90)),
        _sample("u8", (0.05, 121), (0.013, 139), (0.07, 131), dtype=DType.U8),
        _sample("channels_const", coarse, fine, off, ((1, 5, 7, 6), (6,)), const=True),
        _sample("per_pixel", coarse, fine, off, ((1, 5, 7, 6), (1, 5, 7, 1))),
        _sample("per_pixel_left", fine, coarse, off, ((2, 5, 3, 1), (2, 5, 3, 5))),
        _sample("both_sides", coarse, fine, off, ((1, 5, 1, 6), (1, 1, 7, 6))),
        _sample("outer_product", coarse, fine, off, ((53, 1), (1, 61))),
        _sample("rank0", coarse, fine, off, ((), ())),
        _sample("far_apart", (0.02, 5), (3e-9, -9), (0.03, 0)),
        _sample("small_result", (0.02, 5), (0.05, -9), (1e-6, 0)),
        _sample("large_result", (0.02, 5), (0.05, -9), (0.9, -1)),
        *(_sample(a.name.lower(), coarse, fine, off, activation=a) for a in _RELUS),
    ]


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(9) for _ in range(draw.integer(1, 4)))
    other = tuple(draw.choice((d, 1)) for d in shape)[draw.integer(0, len(shape)) :]
    dtype = draw.choice((DType.I8, DType.U8))
    info = np.iinfo(dtype.numpy)

    def term(least: int, most: int) -> tuple[float, int]:
        return draw.integer(least, most) / 4096, draw.integer(int(info.min), int(info.max))

    activation = draw.choice((Activation.NONE, *_RELUS))
    return _sample(
        "broadcast",
        term(1, 4096),
        term(1, 4096),
        term(64, 8192),
        (shape, other),
        dtype=dtype,
        activation=activation,
        const=draw.choice((False, True)),
    )


OPS = (
    OpDef(
        OP,
        graph_attributes,
        infer_broadcast(OP, BYTES),
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        elementwise=True,
        quantized=Quantized(stored=True, integers=Integers("ADD", _attributes)),
        generate=_generate,
    ),
)
