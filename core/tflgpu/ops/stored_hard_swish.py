"""STORED_HARD_SWISH: HARD_SWISH of 8-bit numbers as TFLite's kernel makes it of the stored ones.

No file has this op; the float view of a quantized model (`tflgpu.passes.float_view`) puts it in the
place of a HARD_SWISH. All is done in 16 bits, with fractions of 15, and most steps round: so some
results are a step off from the rounded function.

Source: TFLite's `kernels/internal/reference/hard_swish.h` and `kernels/activations.cc`
(HardSwishPrepare).
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Node
from tflgpu.ops.axes import present
from tflgpu.ops.base import Arg, Arrays, OpDef, Sample, graph_attributes
from tflgpu.ops.elementwise import BYTES, infer_unary
from tflgpu.ops.fixed_functions import divide
from tflgpu.ops.fixed_point import Multiplier
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.ops.quantized import Replacement
from tflgpu.values import frozen

OP = "STORED_HARD_SWISH"
#: Bits that operands are shifted to the left.
POINT = 7
LOW, HIGH = -(1 << 15), (1 << 15) - 1


@frozen
class StoredHardSwish:
    """``linear`` makes steps of the result of shifted ones of the operand, ``bent`` fractions of
    3."""

    operand: QuantizeAndDequantize
    result: QuantizeAndDequantize
    linear: Multiplier
    bent: Multiplier

    @classmethod
    def of(cls, operand: QuantizeAndDequantize, result: QuantizeAndDequantize) -> StoredHardSwish:
        """With multipliers whose values have 16 bits."""
        shifted = np.float32(operand.scale) * np.float32(1 / (1 << POINT))
        third = np.float32(3) / np.float32(1 << 15)
        linear = _short(shifted / np.float32(result.scale))
        return cls(operand, result, linear, _short(shifted / third))


def _short(real: np.float32) -> Multiplier:
    by = Multiplier.of(float(real))
    return Multiplier(min((by.value + (1 << 15)) >> 16, HIGH), by.shift)


def as_stored(node: Node) -> Replacement | None:
    """`Quantized.results` of HARD_SWISH."""
    x, y = node.input(0), node.outputs[0]
    if x.dtype not in BYTES or y.dtype is not x.dtype or x.quant is None or y.quant is None:
        return None
    found = StoredHardSwish.of(QuantizeAndDequantize.of_value(x), QuantizeAndDequantize.of_value(y))
    # TFLite shifts results to the right only.
    if found.linear.shift > 0 or not -15 <= found.bent.shift <= 15:
        return None
    return Replacement(OP, found)


def _fraction(a: Array, b: int) -> Array:
    """Of two fractions of 15 bits, rounded to the nearest, halves away from zero."""
    product = a * b
    half = np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return np.clip(np.trunc((product + half) / (1 << 15)).astype(np.int64), LOW, HIGH)


def _reference(attributes: StoredHardSwish, arrays: Arrays) -> list[Array]:
    x, (linear, bent) = present(arrays[0]), (attributes.linear, attributes.bent)
    wide = steps_of(attributes.operand, x).astype(np.int64) << POINT
    straight, share = _fraction(wide, linear.value), wide
    if bent.left:
        share = np.clip(share << (bent.left - 1), LOW, HIGH)
    share = _fraction(share, bent.value)
    if bent.left:
        share = np.clip(share << 1, LOW, HIGH)
    share = divide(share, bent.right)
    share = (share + (1 << 15)) >> 1  # from -1 .. 1 to 0 .. 1
    found = divide(np.trunc(share * straight / (1 << 15)).astype(np.int64), linear.right)
    result = attributes.result
    steps = np.clip(found, result.low, result.high)
    return [np.asarray(steps * np.float32(result.scale)).astype(x.dtype)]


def _samples() -> list[Sample]:
    def stored(dtype: DType, *quants: tuple[float, int]) -> StoredHardSwish:
        found = (Quantization((scale,), (zero,)) for scale, zero in quants)
        return StoredHardSwish.of(*(QuantizeAndDequantize.of(q, dtype) for q in found))

    def sample(id: str, shape: tuple[int, ...], x: float, y: float, dtype: DType) -> Sample:
        zero = 121 if dtype is DType.U8 else -7
        attributes = stored(dtype, (x, zero), (y, zero + 3))
        return Sample.of(id, attributes, Arg(shape, low=-9, high=9))

    halves = stored(DType.I8, (129 / 4096, -9), (1 / 64, 5))
    steps = np.arange(-119, 137, dtype=np.float32).reshape(4, 64)
    return [
        sample("image", (2, 3, 5, 7), 1 / 16, 1 / 32, DType.I8),
        sample("unsigned", (67,), 1 / 32, 3 / 64, DType.U8),
        # Shifted to the left, and to the right.
        sample("coarse", (3, 13), 1 / 2, 1 / 4, DType.I8),
        sample("fine", (5, 6), 1 / 64, 1 / 64, DType.I8),
        # Every step, of a scale by which some products are halves.
        Sample.of("halves", halves, Arg.of(steps * np.float32(129 / 4096))),
    ]


OPS = (OpDef(OP, graph_attributes, infer_unary(OP, REALS), _reference, _samples, elementwise=True),)
