"""STORED_SUMS: sums of products of stored numbers, brought to the steps of the result.

No file has this op. Its operands are such sums, whole numbers in f32, for each pair of digits of
the factors (`tflgpu.ops.stored_digit`), and a table of whole numbers for each channel:

    total = sum 0 * 2**exponents[0] + sum 1 * 2**exponents[1] + ... + bias
    result = scale * (clamp(total * multiplier + zero point) - zero point)

Of data of 16 bits TFLite multiplies totals of 64 bits by the upper half of the multiplier, of which
it rounds the lower one away; that is a step off in one result of thirty.

Source: TFLite's `kernels/internal/common.cc` (MultiplyByQuantizedMultiplier of int64_t and of
int32_t, without TFLITE_SINGLE_ROUNDING).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present
from tflgpu.ops.base import Arg, Arrays, Draw, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.fixed_point import Multiplier, multiply
from tflgpu.ops.quantize_and_dequantize import REALS
from tflgpu.values import frozen

OP = "STORED_SUMS"
#: Rows of the table: the bias in 16 bits, 16 more and the rest with its sign; a multiplier's value
#: and its shift.
ROWS = 5
_LIMB = 16
#: A total and its product are no longer than TFLite's.
LONGEST = 1 << 47
#: No operand is larger: up to here f32 has every whole number. What is larger is cut, and NaN is 0.
LARGEST = 1 << 24


class SumRounding(enum.Enum):
    """How totals of 32 bits are rounded. LiteRT has a way of its own where a bias has 64 bits, and
    another in the matrix products of its optimized kernels."""

    TWICE = "as `tflgpu.ops.fixed_point`"
    ONCE = "the whole product, halves up"
    UP = "twice, halves up each time"
    EIGHTS = (
        "as UP of channels that make whole eights, as TWICE of the rest: depthwise ones of 8 bits"
    )


#: Channels that LiteRT's depthwise kernel rounds in one go.
VECTOR = 8


@frozen
class StoredSums:
    """``wide`` is whether totals have 64 bits; ``low`` and ``high`` are stored numbers. ``rounds``
    is of totals of 32 bits."""

    exponents: tuple[int, ...]
    wide: bool
    scale: float
    zero_point: int
    low: int
    high: int
    rounds: SumRounding = SumRounding.TWICE


def upper_half(value: int) -> int:
    """What TFLite multiplies 64 bits by, in place of a `Multiplier.value`."""
    return (value + (1 << 15)) >> 16 if value < 0x7FFF0000 else 0x7FFF


def table(bias: Array | None, multipliers: Sequence[Multiplier], channels: int) -> Array:
    """The last operand, for one multiplier or one a channel; the bias is of i32 or i64."""
    rows = np.zeros((ROWS, channels), np.int64)
    if bias is not None:
        wide = bias.reshape(-1).astype(np.int64)
        rows[0], rows[1] = wide & 0xFFFF, (wide >> _LIMB) & 0xFFFF
        rows[2] = wide >> (2 * _LIMB)
    rows[3] = [m.value for m in multipliers]
    rows[4] = [m.shift for m in multipliers]
    return rows.astype(np.int32)


def fits(attributes: StoredSums, most: Array, multipliers: Sequence[Multiplier]) -> bool:
    """Whether totals no larger than ``most``, one for each multiplier, stay within the bits of
    TFLite's arithmetic and of ours."""
    for total, by in zip(most.tolist(), multipliers, strict=True):
        if attributes.wide:
            product = total * upper_half(by.value) / 2 ** (15 - by.shift)
            if total >= LONGEST or by.shift > 7 or product >= 2**31 - 1:
                return False
        elif total << by.left >= 2**31:
            return False
    return True


def _infer(attributes: StoredSums, operands: Operands) -> list[TensorSpec]:
    *sums, numbers = operands
    if len(sums) != len(attributes.exponents) or any(s is None for s in sums) or numbers is None:
        raise ModelError(f"{OP}: {len(sums)} sums for {len(attributes.exponents)} exponents")
    specs = [s.spec for s in sums if s is not None]
    check_dtype(OP, specs[0].dtype, REALS)
    if any(spec != specs[0] for spec in specs):
        raise ModelError(f"{OP}: sums of {', '.join(map(str, specs))}")
    channels = specs[0].shape[-1] if specs[0].shape else 1
    if numbers.dtype is not DType.I32 or numbers.shape != (ROWS, channels):
        raise ModelError(f"{OP}: the table is {numbers.spec}; i32 [{ROWS}, {channels}] is needed")
    numbers.const(OP, "the table")
    return [specs[0]]


def _reference(attributes: StoredSums, arrays: Arrays) -> list[Array]:
    *sums, numbers = (present(a) for a in arrays)
    low, middle, high, value, shift = numbers.astype(np.int64)
    total = (high << (2 * _LIMB)) + (middle << _LIMB) + low
    for part, exponent in zip(sums, attributes.exponents, strict=True):
        whole = np.clip(np.nan_to_num(np.rint(part.astype(np.float64))), -LARGEST, LARGEST)
        total = total + (whole.astype(np.int64) << exponent)
    if attributes.wide:
        half = np.where(value < 0x7FFF0000, (value + (1 << 15)) >> 16, 0x7FFF)
        right = 15 - shift
        steps = (total * half + (np.int64(1) << (right - 1))) >> right
    else:
        # What 32 bits have no room for is cut.
        whole = (total << np.maximum(shift, 0)).astype(np.int32).astype(np.int64)
        steps = _narrow(attributes.rounds, whole, value, np.maximum(-shift, 0))
    zero = attributes.zero_point
    found = np.clip(steps + zero, attributes.low, attributes.high) - zero
    return [np.asarray(found * np.float32(attributes.scale)).astype(sums[0].dtype)]


def _narrow(rounds: SumRounding, x: Array, value: Array, right: Array) -> Array:
    if rounds is SumRounding.TWICE:
        return multiply(x, value, 0, right)
    if rounds is SumRounding.EIGHTS:
        together = np.arange(value.size) < value.size // VECTOR * VECTOR
        return np.where(together, _up(_up(x * value, 31), right), multiply(x, value, 0, right))
    return (
        _up(x * value, 31 + right) if rounds is SumRounding.ONCE else _up(_up(x * value, 31), right)
    )


def _up(x: Array, bits: Any) -> Array:
    """``x / 2**bits``, rounded to the nearest, halves up."""
    half = np.left_shift(np.int64(1), np.asarray(bits, np.int64)) >> 1
    return np.asarray((x + half) >> bits)


def _sample(
    id: str,
    shape: tuple[int, ...],
    exponents: tuple[int, ...],
    wide: bool,
    reals: Sequence[float],
    rounds: SumRounding = SumRounding.TWICE,
) -> Sample:
    channels = shape[-1] if shape else 1
    reals = [reals[c % len(reals)] for c in range(channels)]
    # A bias of small factors needs more than 32 bits.
    most = np.minimum(2e4 / np.array(reals), 1e11)
    bias = (np.linspace(-0.01, 1, channels) * (most if wide else most / 1e3)).astype(np.int64)
    ends = (0, -30000, 1 << 15) if wide else (-7, -128, 127)
    attributes = StoredSums(exponents, wide, 1 / 64, *ends, rounds)
    numbers = table(bias, [Multiplier.of(r) for r in reals], channels)
    # Whole numbers that f16 has too.
    rng = np.random.default_rng(len(id))
    sums = [Arg.of(rng.integers(-2000, 2000, shape).astype(np.float32)) for _ in exponents]
    return Sample.of(id, attributes, *sums, Arg.of(numbers, DType.I32))


def _samples() -> list[Sample]:
    return [
        # Shifts to the right by 15 bits and less, by up to 31, and by more.
        _sample("wide", (2, 3, 5, 7), (0, 8), True, (1.7e-3, 9e-3, 0.04, 0.07)),
        _sample("wide_far", (3, 13), (0, 8, 8, 16), True, (3e-8, 2e-6, 1e-5, 1e-4)),
        _sample("wide_thirds", (5, 6), (0, 6, 12), True, (0.003, 4e-5)),
        _sample("growing", (5, 6), (0,), True, (3.3, 0.61)),
        _sample("narrow", (3, 5, 6), (0, 8), False, (1e-3, 4e-6, 0.02)),
        _sample("once", (3, 5, 6), (0, 8), False, (1e-3, 4e-6, 0.02, 0.6, 1.7), SumRounding.ONCE),
        _sample("up", (3, 5, 6), (0, 8), False, (1e-3, 4e-6, 0.02, 0.6, 1.7), SumRounding.UP),
        _sample(
            "eights", (3, 5, 13), (0,), False, (1e-3, 0.25, 0.02, 0.6, 1.7), SumRounding.EIGHTS
        ),
        _sample("vanishing", (7,), (0,), True, (1e-12,)),
    ]


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(9) for _ in range(draw.integer(1, 4)))
    real = 2.0 ** -draw.integer(6, 28) * draw.integer(100, 199) / 199
    return _sample("generated", shape, draw.choice(((0, 8), (0, 6, 12))), True, (real,))


OPS = (OpDef(OP, graph_attributes, _infer, _reference, _samples, generate=_generate),)
