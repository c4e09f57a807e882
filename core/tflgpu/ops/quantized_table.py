"""QUANTIZED_TABLE: a function of 8- or 16-bit numbers, given as one result for each of them.

No file has this op. TFLite computes some functions of 16-bit quantized tensors from tables, so
coarsely that the results are many steps off (`tflgpu.ops.int16_tables`), and others on whole
numbers, rounded in other ways (`tflgpu.ops.stored_functions`). The float view of a quantized model
(`tflgpu.passes.float_view`) puts this op in their place:

    table[x / scale - low] * result

with the operand's real numbers, which are whole multiples of ``scale``, and a table of a whole
number for each that can be stored: 256 or 65536.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Arg, Arrays, Draw, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.values import frozen

OP = "QUANTIZED_TABLE"
#: Numbers of 8 and of 16 bits.
SIZES = (1 << 8, 1 << 16)


@frozen
class QuantizedTable:
    """``operand`` says what the operand's numbers are; a result is ``result`` times an entry."""

    operand: QuantizeAndDequantize
    result: float


def _infer(attributes: QuantizedTable, operands: Operands) -> list[TensorSpec]:
    x, table = take_operands(OP, operands, 2)
    check_dtype(OP, x.dtype, REALS)
    size = attributes.operand.high - attributes.operand.low + 1
    if table.dtype is not DType.I32 or table.shape != (size,):
        raise ModelError(f"{OP}: the table (operand 1) is {table.spec}; i32 [{size}] is needed")
    return [x.spec]


def _reference(attributes: QuantizedTable, arrays: Arrays) -> list[Array]:
    x, table = (present(a) for a in arrays)
    steps = steps_of(attributes.operand, x).astype(np.int64) - attributes.operand.low
    found = table[steps].astype(np.float32) * np.float32(attributes.result)
    return [np.asarray(found).astype(x.dtype)]


def _sample(id: str, shape: tuple[int, ...], low: int, size: int = SIZES[-1]) -> Sample:
    # A table without any order, so that a neighbour's entry is wrong.
    table = (np.arange(size) * 40503 % size - size // 2).astype(np.int32)
    operand = QuantizeAndDequantize(16 / size, low, low + size - 1)
    # Beyond the ends the first and the last entry are taken.
    args = Arg(shape, low=-9, high=9), Arg.of(table, DType.I32)
    return Sample.of(id, QuantizedTable(operand, 1 / 2048), *args)


def _samples() -> list[Sample]:
    return [
        _sample("vector", (13,), -(1 << 15)),
        _sample("image", (2, 3, 5, 7), -30000),
        _sample("bytes", (3, 5, 6), -100, 1 << 8),
    ]


def _generate(draw: Draw) -> Sample:
    shape = tuple(draw.size(9) for _ in range(draw.integer(0, 4)))
    return _sample("generated", shape, draw.choice((-(1 << 15), -31000)))


OPS = (OpDef(OP, graph_attributes, _infer, _reference, _samples, generate=_generate),)
