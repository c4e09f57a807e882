"""STORED_UNIT: rows of stored numbers over their length, as TFLite's L2_NORMALIZATION of u8 rounds
them.

No file has this op. The float view of a quantized model (`tflgpu.passes.float_view`) puts it in the
place of an L2_NORMALIZATION of u8, which rounds twice: to a fraction of a step that follows from
the length, and then to a step. What lies a little below a half goes up with the first. Of i8 TFLite
shifts before, and rounds once.

Source: TFLite's `kernels/internal/optimized/optimized_ops.h` (L2Normalization of uint8) and
`kernels/internal/quantization_util.h` (GetInvSqrtQuantizedMultiplierExp).
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Activation,
    Arg,
    Arrays,
    OpDef,
    Operands,
    Sample,
    graph_attributes,
)
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.fixed_functions import inverse_root
from tflgpu.ops.fixed_point import multiply
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.ops.quantized import Replacement
from tflgpu.values import frozen

OP = "STORED_UNIT"
#: Steps of the result in 1.
UNIT = 128
#: f32 has every sum of squares below.
LARGEST = 1 << 24


@frozen
class StoredUnit:
    """What the operand's numbers are; a result is a whole number of 1 / `UNIT`, from -128 to
    127."""

    operand: QuantizeAndDequantize

    @property
    def widest(self) -> int:
        """The square of the largest number of steps."""
        return max(-self.operand.low, self.operand.high) ** 2


def as_stored(node: Node) -> Replacement | None:
    """`Quantized.results` of L2_NORMALIZATION."""
    x, y = node.input(0), node.outputs[0]
    if x.dtype is not DType.U8 or y.dtype is not DType.U8 or x.quant is None or y.quant is None:
        return None
    # LiteRT takes no other result.
    if (y.quant.scale, y.quant.zero_point) != ((1 / UNIT,), (UNIT,)):
        return None
    attributes = StoredUnit(QuantizeAndDequantize.of_value(x))
    if node.attrs.activation is not Activation.NONE or x.shape[-1] * attributes.widest >= LARGEST:
        return None
    return Replacement(OP, attributes)


def _infer(attributes: StoredUnit, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(OP, operands, 1)
    check_dtype(OP, x.dtype, REALS)
    if not x.shape or x.shape[-1] * attributes.widest >= LARGEST:
        raise ModelError(f"{OP}: rows of {list(x.shape)} are none, or too long")
    return [x.spec]


def _reference(attributes: StoredUnit, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    steps = steps_of(attributes.operand, x).astype(np.int64)
    squares = np.square(steps).sum(-1, keepdims=True)
    by = [inverse_root(number) for number in squares.reshape(-1).tolist()]
    value, left, right = (
        np.array([getattr(m, name) for m in by], np.int64).reshape(squares.shape)
        for name in ("value", "left", "right")
    )
    found = np.clip(multiply(steps * UNIT, value, left, right), -128, 127)
    return [np.asarray(found * np.float32(1 / UNIT)).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(id: str, *shape: int, low: int = -128, reach: float = 9) -> Sample:
        attributes = StoredUnit(QuantizeAndDequantize(1 / 16, low, low + 255))
        return Sample.of(id, attributes, Arg(shape, low=-reach, high=reach))

    return [
        sample("image", 2, 3, 5, 6),
        sample("row", 3, 67),
        sample("one", 5, 1),
        sample("from_zero", 3, 5, 7, low=0),
        sample("short", 9, 2, reach=0.3),
    ]


OPS = (OpDef(OP, graph_attributes, _infer, _reference, _samples),)
