"""Functions of 16-bit quantized numbers, as TFLite's kernels take them from tables.

Of 16 bits TFLite computes EXP, LOG, RSQRT, GELU, LOGISTIC and TANH from tables of a few hundred
numbers, with straight lines between them. What comes is many steps off from the rounded function
where that bends, so a function that is computed and rounded is not the same. Here each becomes one
number for each of the 65536 operands: `table[q + 32768]` is the result that is stored for the
stored operand q.

LOGISTIC and TANH of operands whose scale is a certain power of two are computed by other means
(`tflgpu.ops.fixed_functions`).

Sources: TFLite's `kernels/internal/common.h` (LUTPopulateInt16, LUTLookup),
`kernels/activations.cc` (TanhPrepare, SigmoidPrepare),
`kernels/internal/reference/integer_ops/logistic.h` and `tanh.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array, Quantization
from tflgpu.ir.graph import Node
from tflgpu.ops import fixed_functions

_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
#: Of the table of EXP, LOG, RSQRT and GELU: straight pieces, each of 128 operands.
_PIECES, _LENGTH = 512, 128
#: Of the table that LOGISTIC and TANH share: entries in each unit of x.
_PER_UNIT = 24


def interpolated(fn: Callable[[Node, Array], Array]) -> Callable[[Node], Array | None]:
    """Straight lines between 513 points of a function, each moved by half of the error in the
    middle of its line. ``fn`` gets real numbers, in f32."""

    def table(node: Node) -> Array | None:
        x, y = node.input(0).quant, node.outputs[0].quant
        assert x is not None
        assert y is not None
        with np.errstate(all="ignore"):
            return lines(lambda at: fn(node, at), x, y)

    return table


def lines(
    fn: Callable[[Array], Array], x: Quantization, y: Quantization, kind: Any = np.float32
) -> Array:
    """The table of a function, for an operand and a result of one scale each, i16.

    Args:
        fn: Of an array of ``kind``.
        x: The operand's scale.
        y: The result's.
        kind: The NumPy type in which TFLite computes the points.
    """
    scale, zero = kind(x.scale[0]), x.zero_point[0]
    lowest, highest = scale * kind(_LOW - zero), scale * kind(_HIGH - zero)
    step = kind((highest - lowest) / kind(_PIECES))
    bottom, top = (kind(y.scale[0]) * kind(e - y.zero_point[0]) for e in (_LOW, _HIGH))
    inverse = kind(kind(_HIGH - _LOW + 1) / kind(top - bottom))
    at = np.arange(_PIECES, dtype=kind)
    starts = _from(fn, kind, lowest + at * step) * inverse
    middles = _rounded(_from(fn, kind, lowest + at * step + step / kind(2)) * inverse)
    ends = _from(fn, kind, lowest + (at + kind(1)) * step) * inverse
    starts = _rounded(starts)
    bias = _rounded((_rounded((ends + starts) / kind(2)) - middles) / kind(2))
    last = _rounded(_from(fn, kind, np.array([highest], kind)) * inverse)
    points = np.clip(np.concatenate([starts - bias, last]), _LOW, _HIGH).astype(np.int64)
    operand = np.arange(_LOW, _HIGH + 1)
    piece, offset = (operand >> 7) + _PIECES // 2, operand & (_LENGTH - 1)
    base = points[piece]
    # TFLite keeps the slope in 16 bits, so that a piece which climbs over more than half of them
    # goes down instead.
    slope = (points[piece + 1] - base).astype(np.int16).astype(np.int64)
    found: Array = (base + ((slope * offset + _LENGTH // 2) >> 7)).astype(np.int16)
    return found


def _from(fn: Callable[[Array], Array], kind: Any, x: Array) -> Array:
    return np.asarray(fn(x.astype(kind)), kind)


def _rounded(x: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x))


def _sigmoid_points() -> Array:
    """The sigmoid in 65536ths, raised by half of what a straight line between two points would
    lie below it in the middle, where that is most. The last one is the largest number."""
    sigmoid = 1 / (1 + np.exp(-np.arange(256) / _PER_UNIT))
    bend = sigmoid * (1 - sigmoid) * (2 * sigmoid - 1) / _PER_UNIT**2  # minus the second derivative
    points = np.floor(65536 * (sigmoid + bend / 16) + 0.5)
    return np.append(points[:-1], 65535).astype(np.int64)


def _scaled(node: Node, shifts: tuple[int, ...]) -> Array | None:
    """All operands in units of 1 / 12288, as the multiplier of the file's scale makes them; None
    where the scale is ``2 ** (shift - 12)`` for one of ``shifts``."""
    quant = node.input(0).quant
    assert quant is not None
    scale = float(np.float32(quant.scale[0]))
    operand = np.arange(_LOW, _HIGH + 1)
    power = math.log2(scale)
    shift = 12 + round(power)
    if abs(power - round(power)) < 1e-3 and shift in shifts:
        return None
    multiplier, shift = scale * 4096 * 3, 0
    while multiplier <= _HIGH / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return (operand * int(multiplier) + ((1 << shift) >> 1)) >> shift


def _along(x: Array, bits: int) -> Array:
    """The sigmoid of |x| by the table, whose entries are ``2 ** bits`` apart: ``2 ** (16 + bits)``
    is 1."""
    size = np.abs(x)
    piece = np.minimum(size >> bits, 254)
    points = _sigmoid_points()
    base, part = points[piece], size & ((1 << bits) - 1)
    return np.asarray((base << bits) + part * (points[piece + 1] - base))


def logistic(node: Node) -> Array | None:
    """LOGISTIC, whose results are steps of 1 / 32768."""
    x = _scaled(node, (0,))
    if x is None:
        return fixed_functions.logistic()
    found = np.where(np.abs(x) >> 9 >= 255, _HIGH << 10, _along(x, 9))
    found = np.where(x >= 0, found + (1 << 9), (1 << 25) - found + (1 << 9) - 1)
    return (found >> 10).astype(np.int16)


def tanh(node: Node) -> Array | None:
    """TANH, by ``2 * sigmoid(2 * x) - 1``; its results are steps of 1 / 32768."""
    x = _scaled(node, (0, 1))
    if x is None:
        # Operands with 3 bits before the point, or shifted so that they have.
        quant = node.input(0).quant
        assert quant is not None
        shift = 12 + round(math.log2(float(np.float32(quant.scale[0]))))
        wanted = np.clip(np.arange(_LOW, _HIGH + 1) << shift, _LOW, _HIGH)
        return fixed_functions.look_up(fixed_functions.tanh(3), wanted).astype(np.int16)
    found = np.where(np.abs(x) >> 8 >= 255, 0xFFFF << 8, _along(x, 8))
    half, rounding = 1 << 23, 1 << 7
    found = np.where(x >= 0, found - half + rounding, half - found + rounding - 1)
    return (found >> 8).astype(np.int16)
