"""STORED_DIGIT: one digit of the whole number that a real one is stored as.

No file has this op. Sums of products of 16-bit numbers are too long for f32. The float view of a
quantized model (`tflgpu.passes.float_view`) writes each number in digits of a few bits, sums the
products of each digit by the op that is there for real numbers, exactly, and lets STORED_SUMS put
the sums together:

    x = scale * (digit 0 + digit 1 * 2**bits + ...)

Digits have signs, from ``-2**(bits - 1)`` to below ``2**(bits - 1)``, which keeps sums short; the
last one takes what is left.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ops.axes import present
from tflgpu.ops.base import Arg, Arrays, OpDef, Sample, graph_attributes
from tflgpu.ops.elementwise import infer_unary
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.values import frozen

OP = "STORED_DIGIT"


@frozen
class StoredDigit:
    """Which of ``count`` digits of ``bits`` bits, the lowest being 0; ``stored`` says what the
    numbers are."""

    stored: QuantizeAndDequantize
    bits: int
    count: int
    index: int


def _reference(attributes: StoredDigit, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    rest, base = steps_of(attributes.stored, x), np.float32(1 << attributes.bits)
    digit = rest
    for _ in range(attributes.index + 1):
        upper = np.floor((rest + base / 2) / base)
        digit, rest = rest - upper * base, upper
    if attributes.index == attributes.count - 1:
        digit = digit + rest * base
    return [np.asarray(digit).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], bits: int, count: int, index: int) -> Sample:
        stored = QuantizeAndDequantize(1 / 256, -(1 << 15), (1 << 15) - 1)
        # To either side of the ends.
        attributes = StoredDigit(stored, bits, count, index)
        return Sample.of(id, attributes, Arg(shape, low=-140, high=140))

    return [
        sample("low", (2, 3, 5, 7), 8, 2, 0),
        sample("high", (3, 5, 6), 8, 2, 1),
        sample("middle", (67,), 6, 3, 1),
        sample("whole", (3, 13), 8, 1, 0),
    ]


OPS = (OpDef(OP, graph_attributes, infer_unary(OP, REALS), _reference, _samples, elementwise=True),)
