"""Attributes that an op takes from its tensors and from a subgraph that it runs."""

from __future__ import annotations

from tflgpu.ir.dtypes import Quantization
from tflgpu.ir.graph import FileOptions, Node, Value


def tensor_fields(node: Node) -> dict[str, object]:
    """Types, scales and shapes of a node's tensors, and the operator of its subgraph, as fields
    that `OpDef.parse` gets beside the options (for example `ops.convert` reads them)."""
    source = node.optional_input(0)
    result = node.outputs[0] if node.outputs else None
    return {
        "output_dtype": None if result is None else result.dtype,
        "input_quantization": None if source is None else source.quant,
        "output_quantization": None if result is None else result.quant,
        "operand_types": tuple(None if v is None else (v.dtype, v.quant) for v in node.inputs),
        "intermediate_quantization": _intermediates(node),
        "output_shapes": tuple(_told_shape(v) for v in node.outputs),
        "output_dtypes": tuple(v.dtype for v in node.outputs),
        "computation": None if node.source is None else _computation(node.source),
    }


def _intermediates(node: Node) -> tuple[Quantization | None, ...]:
    values = () if node.source is None else node.source.intermediates
    return tuple(None if v is None else v.quant for v in values)


def _told_shape(value: Value) -> tuple[int, ...] | None:
    """The shape that the file gives a tensor; None where it leaves a size open."""
    signature = value.shape_signature
    return None if signature is not None and -1 in signature else value.shape


def _computation(source: FileOptions) -> str | None:
    """The operator that a subgraph of two numbers is, for ops that merge elements by one: its name;
    "" where it gives the second; None where it is anything else, or there is none."""
    numbers = [value for name, value in source.fields.items() if name.endswith("subgraph_index")]
    if len(numbers) != 1 or not 0 <= numbers[0] < len(source.bodies):
        return None
    body = source.bodies[numbers[0]]
    if len(body.inputs) != 2 or len(body.outputs) != 1:
        return None
    if not body.operators and body.outputs[0] == body.inputs[1]:
        return ""
    if len(body.operators) != 1:
        return None
    (operator,) = body.operators
    fits = sorted(operator.inputs) == sorted(body.inputs) and operator.outputs == body.outputs
    plain = not operator.fields.get("fused_activation_function")
    return operator.name if fits and plain and not operator.is_custom else None
