"""QUANTIZED_TABLE: a function of 8- or 16-bit numbers, given as one result for each of them.

No file has this op. TFLite computes some functions of 16-bit quantized tensors from tables, so coarsely
that the results are many steps off (`tflgpu.ops.int16_tables`), and does not round some
(`tflgpu.ops.stored_tables`). The float view of a quantized model
(`tflgpu.passes.float_view`) puts this op in their place:

    table[x / scale - low] * result

with the operand's real numbers, which are whole multiples of ``scale``, and a table of 256 or 65536 whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Accuracy, Arg, Draw, Fields, OpDef, Operand, Sample
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize, steps_of

OP = "QUANTIZED_TABLE"
#: Numbers of 16 bits, and of 8.
SIZE, FEW = 1 << 16, 1 << 8
_FLOATS = frozenset({DType.F32, DType.F16})


@attrs.frozen
class QuantizedTable:
    """``operand`` says what the operand's numbers are; a result is ``result`` times an entry."""

    operand: QuantizeAndDequantize
    result: float

    @property
    def size(self) -> int:
        """Entries of the table."""
        return self.operand.high - self.operand.low + 1


def _parse(fields: Fields) -> QuantizedTable:
    scale, low, result = fields.number("scale"), fields.integer("low"), fields.number("result")
    if not scale > 0 or not result > 0:
        raise ModelError(f"{OP}: scales {scale} and {result} are not positive")
    size = fields.integer("size", SIZE)
    if size not in (SIZE, FEW):
        raise ModelError(f"{OP}: a table of {size} numbers, neither {SIZE} nor {FEW}")
    return QuantizedTable(QuantizeAndDequantize(scale, low, low + size - 1), result)


def _infer(attributes: QuantizedTable, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    x, table = take_operands(OP, operands, 2)
    check_dtype(OP, x.dtype, _FLOATS)
    if table.dtype is not DType.I32 or table.shape != (attributes.size,):
        raise ModelError(
            f"{OP}: the table (operand 1) is {table.spec}; i32 [{attributes.size}] is needed"
        )
    return [x.spec]


def _reference(attributes: QuantizedTable, arrays: Sequence[Array | None]) -> list[Array]:
    x, table = (present(a) for a in arrays)
    steps = steps_of(attributes.operand, x).astype(np.int64) - attributes.operand.low
    found = table[steps].astype(np.float32) * np.float32(attributes.result)
    return [np.asarray(found).astype(x.dtype)]


def _sample(id: str, shape: tuple[int, ...], low: int, size: int = SIZE) -> Sample:
    # A table without any order, so that a neighbour's entry is wrong.
    table = (np.arange(size) * 40503 % size - size // 2).astype(np.int32)
    scale = 16 / size
    fields = {"scale": scale, "low": low, "result": 2 * scale, "size": size}
    # Beyond the ends the first and the last entry are taken.
    return Sample(id, fields, (Arg(shape, low=-9, high=9), Arg.of(table, DType.I32)))


def _samples() -> list[Sample]:
    return [_sample("vector", (13,), -(1 << 15)), _sample("image", (2, 3, 5, 7), -30000),
            _sample("of_8_bits", (3, 13), -121, FEW)]  # fmt: skip


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(9) for _ in range(draw.integer(0, 4)))
    return _sample("generated", shape, draw.choice((-(1 << 15), -31000)))


OPS = (
    OpDef(OP, _parse, _infer, _reference, _samples, accuracy=Accuracy.ROUNDED, generate=_generate),
)
