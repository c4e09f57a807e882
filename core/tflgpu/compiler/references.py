"""Which operators the NumPy references can run; a device is not offered the others."""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.ir.graph import Node
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.base import Accuracy, Activation, OpDef
from tflgpu.ops.unknown import unknown_reason
from tflgpu.passes.scales import is_quantized


def reference_support(node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
    """Why the references cannot run a node, None where they can."""
    reason = unknown_reason(node.attrs)
    if reason is not None:
        return Unsupported(reason, ReasonCode.UNSUPPORTED_OP)
    op = ops.get(node.op)
    if op is None:
        return Unsupported(
            f"op {node.op} is not known; a plugin may define it", ReasonCode.UNSUPPORTED_OP
        )
    if node.version > op.max_version:
        return Unsupported(
            f"{node.op} version {node.version} is newer than {op.max_version}, the last one known"
        )
    for value in (*node.inputs, *node.outputs):
        if value is not None and not value.dtype.has_numpy:
            return Unsupported(f"tensor {value.name} is {value.dtype.value}")
        if value is not None and is_quantized(value) and not _on_stored(node, op):
            return Unsupported(
                f"tensor {value.name} is quantized {value.dtype.value}; "
                f"this {node.op} is not computed on quantized numbers"
            )
    return None


def _on_stored(node: Node, op: OpDef) -> bool:
    """Whether a node's reference gives the stored numbers of its results for those of its operands:
    also where it only copies numbers between tensors of one quantization whose 0 is 0. So it is
    with those of a scale of 0, which converters write for constants of zeros: no real numbers tell
    them apart."""
    if op.on_stored(node.attrs):
        return True
    if not op.keeps_values or op.accuracy is not Accuracy.EXACT:
        return False
    if op.activation_of(node) is not Activation.NONE:
        return False
    found = [v for v in (*node.inputs, *node.outputs) if v is not None and is_quantized(v)]
    first = found[0]
    assert first.quant is not None
    return first.quant.zero_point == (0,) and all(
        v.quant == first.quant and v.dtype is first.dtype for v in found
    )
