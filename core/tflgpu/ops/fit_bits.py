"""FIT_BITS: a whole number as 2 or 4 bits store it.

No file has this op. A graph holds such tensors as bytes, and the reader (`tflgpu.tflite.narrow`)
puts this op where numbers come in that a byte has room for and the type has not: they are clamped,
as TFLite's CAST and QUANTIZE do (cast.cc, quantize.cc), or wrap around, as packing them does.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    OpDef,
    Operands,
    Quantized,
    Sample,
    graph_attributes,
)
from tflgpu.ops.elementwise import BYTES, check_dtype
from tflgpu.values import frozen

OP = "FIT_BITS"


@frozen
class FitBits:
    """How many bits there are, whether the highest is a sign, and whether only the lowest ones of a
    number are kept instead of the nearest number."""

    bits: int
    signed: bool
    wraps: bool

    @property
    def low(self) -> int:
        """The lowest number."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """The highest number."""
        return self.low + (1 << self.bits) - 1


def _infer(attributes: FitBits, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(OP, operands, 1)
    check_dtype(OP, x.dtype, BYTES)
    if attributes.signed is not (x.dtype is DType.I8):
        kind = "a sign" if attributes.signed else "no sign"
        raise ModelError(
            f"{OP}: numbers with {kind} are asked for, of operand 0, which is {x.dtype}"
        )
    return [x.spec]


def _reference(attributes: FitBits, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    wide = x.astype(np.int32)
    if attributes.wraps:
        fitted = ((wide - attributes.low) & ((1 << attributes.bits) - 1)) + attributes.low
    else:
        fitted = np.clip(wide, attributes.low, attributes.high)
    return [np.asarray(fitted).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(id: str, bits: int, *, signed: bool, wraps: bool) -> Sample:
        low, high = (-128, 128) if signed else (0, 256)
        arg = Arg((3, 5, 7), DType.I8 if signed else DType.U8, low, high)
        return Sample.of(id, FitBits(bits, signed, wraps), arg)

    return [
        sample("i4", 4, signed=True, wraps=False),
        sample("i4_wrapped", 4, signed=True, wraps=True),
        sample("u4", 4, signed=False, wraps=False),
        sample("i2_wrapped", 2, signed=True, wraps=True),
    ]


OPS = (
    OpDef(
        OP,
        graph_attributes,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        elementwise=True,
        quantized=Quantized(stored=True),
    ),
)
