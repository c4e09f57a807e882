"""Float data that meets 8-bit weights, in the float view: rounded in steps that are found while the
model runs, as TFLite's kernels do."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.ops.base import OpDef
from tflgpu.ops.quantize_on_the_fly import OP as ON_THE_FLY
from tflgpu.ops.quantize_on_the_fly import QuantizeOnTheFly
from tflgpu.ops.quantized import OnTheFly, is_in_blocks, is_quantized
from tflgpu.ops.reshape import ReshapeAttrs

#: The blocks that XNNPACK takes are multiples of this.
_BLOCK = 32


def read_legacy_weights(graph: Graph, node: Node, inputs: list[Value | None]) -> None:
    """Weights that the first converters stored as u8 beside float data: their bits are those of
    i8, whose 0 is 0, and TFLite's kernels look at no zero point."""
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is not DType.U8 or value.contents is None:
            continue
        if value.quant is not None:
            zeros = (0,) * len(value.quant.scale)
            quant = Quantization(value.quant.scale, zeros, value.quant.axis)
            data = quant.dequantize(np.ascontiguousarray(value.data).view(np.int8))
            inputs[index] = graph.add_const(data, name=value.name)


def round_block_scales(graph: Graph, inputs: list[Value | None]) -> None:
    """Round the scales of blocks as XNNPACK does, which has them as bf16 (measured).

    It takes blocks of 32 and multiples of that; LiteRT's own kernel takes the others, with the
    scales as they are.
    """
    for index, value in enumerate(inputs):
        held = None if value is None else value.contents
        if value is None or not isinstance(held, StoredReals):
            continue
        blocks = held.quantization
        if isinstance(blocks, BlockScales) and blocks.size % _BLOCK == 0:
            bits = blocks.scales.astype(np.float32).view(np.uint32)
            bits = bits + (0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
            rounded = BlockScales(bits.view(np.float32), blocks.size)
            contents = StoredReals(held.numbers, rounded, held.in_nibbles)
            inputs[index] = graph.add_const(contents, name=value.name)


class RoundedData:
    """The data of a graph that was rounded so far: once for all nodes that read it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._rounded: dict[tuple[int, OnTheFly], Value] = {}

    def put(self, op: OpDef, node: Node, inputs: list[Value | None]) -> None:
        """Put rounded data in the place of a hybrid node's, as TFLite's kernel rounds it."""
        x = node.optional_input(0 if op.arithmetic.filter is None else op.arithmetic.filter.source)
        hybrid = op.quantized.hybrid
        if hybrid is None or x is None or x.dtype is not DType.F32:
            return
        if not any(is_in_blocks(v) or (v is not None and is_quantized(v)) for v in node.inputs):
            return
        found = hybrid(node)
        if found.attributes is not None:
            node.attrs = found.attributes
        for how in found.data:
            data = node.optional_input(how.operand)
            if data is not None and data.dtype is DType.F32 and data.elements:
                inputs[how.operand] = self._round(node, data, how)

    def _round(self, node: Node, x: Value, how: OnTheFly) -> Value:
        key = (x.id, how)
        found = self._rounded.get(key)
        if found is None:
            given = x
            if how.shape is not None:
                given = self._graph.add_value(how.shape, DType.F32, name=x.name)
                self._graph.add_node(
                    "RESHAPE", ReshapeAttrs(how.shape), [x], [given], origins=node.origins
                )
            found = self._graph.add_value(given.shape, DType.F32, name=x.name)
            attributes = QuantizeOnTheFly(how.axes, how.rounding)
            self._graph.add_node(ON_THE_FLY, attributes, [given], [found], origins=node.origins)
            self._rounded[key] = found
        return found
