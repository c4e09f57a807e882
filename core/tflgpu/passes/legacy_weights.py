"""Weights that the first converters stored as u8 beside float data."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.quant import Quantization


def read_legacy_weights(graph: Graph, node: Node, inputs: list[Value | None]) -> None:
    """Put the real numbers of such weights into ``inputs``: their bits are those of i8, whose 0 is 0,
    and TFLite's kernels look at no zero point."""
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is not DType.U8 or value.data is None:
            continue
        if value.quant is not None:
            zeros = (0,) * len(value.quant.scale)
            quant = Quantization(value.quant.scale, zeros, value.quant.axis)
            data = quant.dequantize(np.ascontiguousarray(value.data).view(np.int8))
            inputs[index] = graph.add_const(data, name=value.name)
