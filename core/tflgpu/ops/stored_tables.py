"""Functions of quantized numbers of which TFLite's kernel stores something else than the rounded result,
as one result for each stored operand.

* SQRT (elementwise.cc, SqrtEvalQuantized): the steps of the root are cut off, not rounded.
* LOG (elementwise.cc, LogPrepare) of what has no logarithm: the lowest number, of 8 bits.

A stored operand that the kernel refuses while it runs, a negative one of SQRT, becomes the result's 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops import quantized_table
from tflgpu.ops.facets import Instead
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize

#: Real operands in f32, and the scale of the result -> steps from the result's 0, as they are stored.
Steps = Callable[[Array, "np.float32"], Array]


def root(x: Array, scale: np.float32) -> Array:
    """SQRT."""
    return np.asarray(np.trunc(np.sqrt(np.maximum(x, np.float32(0))) / scale))


def logarithm(x: Array, scale: np.float32) -> Array:
    """LOG."""
    steps = np.log(np.where(x > 0, x, 1)) * (np.float32(1) / scale)
    return np.where(x > 0, np.copysign(np.floor(np.abs(steps) + np.float32(0.5)), steps), -np.inf)


def _stored(node: Node, steps: Steps, dtype: DType) -> Array | None:
    """What is stored for each stored operand, from the lowest on; None for tensors of other types."""
    x, y = node.input(0), node.outputs[0]
    if x.dtype is not dtype or y.dtype is not dtype or x.quant is None or y.quant is None:
        return None
    info = np.iinfo(dtype.numpy)
    operands = np.arange(info.min, info.max + 1) - x.quant.zero_point[0]
    real = operands.astype(np.float32) * np.float32(x.quant.scale[0])
    found = steps(real, np.float32(y.quant.scale[0])) + y.quant.zero_point[0]
    return np.asarray(np.clip(found, info.min, info.max).astype(dtype.numpy))


def of_16_bits(steps: Steps) -> Callable[[Node], Array | None]:
    """As `OpDef.int16_table` has it."""
    return lambda node: _stored(node, steps, DType.I16)


def of_8_bits(steps: Steps) -> Callable[[Node], Instead | None]:
    """As `OpDef.as_stored` has it, of i8."""

    def become(node: Node) -> Instead | None:
        table = _stored(node, steps, DType.I8)
        if table is None:
            return None
        x, y = node.input(0).quant, node.outputs[0].quant
        assert x is not None
        assert y is not None
        attributes = quantized_table.QuantizedTable(
            QuantizeAndDequantize.of(x, DType.I8), y.scale[0]
        )
        entries = table.astype(np.int32) - np.int32(y.zero_point[0])
        return Instead(quantized_table.OP, attributes, (entries,))

    return become
