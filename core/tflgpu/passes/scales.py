"""Facts that follow from the scales of quantized tensors: which nodes round, and which only
move."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.errors import TflgpuError
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.ops.base import Activation, OpDef, known_operands
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.quantized import is_quantized, is_simple


def range_of(value: Value) -> QuantizeAndDequantize:
    """The rounding of storing a number in a tensor of one scale."""
    assert value.quant is not None
    return QuantizeAndDequantize.of_value(value)


def only_moves(op: OpDef, node: Node, operands: Sequence[Value], out: Value) -> bool:
    """Whether a node only copies numbers, whose steps are the result's."""
    if (
        not op.movement.keeps_values
        or not operands
        or op.activation_of(node) is not Activation.NONE
    ):
        return False
    return all(is_simple(v) and range_of(v) == range_of(out) for v in operands)


def one_scale(op: OpDef, node: Node, operands: Sequence[Value]) -> Value | None:
    """The result on whose scale TFLite's kernel takes all stored numbers to be, where the file says
    otherwise of one of them; None where it does not, or the kernel rescales."""
    results = [v for v in node.outputs if is_quantized(v)]
    if not operands or not results or not op.has_one_scale(results[0].dtype):
        return None
    involved = [*operands, *results]
    if not all(is_simple(v) and v.dtype is results[0].dtype for v in involved):
        return None
    return None if all(range_of(v) == range_of(results[0]) for v in involved) else results[0]


def inferred(op: OpDef, node: Node, inputs: Sequence[Value | None]) -> list[TensorSpec] | None:
    """The results of a node's op on other operands; None where it takes no such."""
    try:
        return list(op.infer(node.attrs, known_operands(inputs)))
    except TflgpuError:
        return None
