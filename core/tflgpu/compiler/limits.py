"""Tensors that no kernel can take: types that cannot cross to a device, empty or huge tensors."""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.ir.budget import MAX_BYTES
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.lowering.rule import Site
from tflgpu.ops.base import OpDef

_STORED = frozenset({DType.I8, DType.U8, DType.I16})


def tensor_limits(node: Node, op: OpDef | None, site: Site) -> Unsupported | None:
    """``op`` is the node's definition, None where there is none. The reason why a node's tensors
    cannot be on a device, None where they can."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value.is_const:
            continue
        if value.is_variable and (op is None or op.states is None):
            return Unsupported(f"tensor {value.name} is a variable; state is kept on the CPU")
        as_it_is = op is not None and op.on_stored(node.attrs)
        crosses = site.integers.edge(value.dtype, site.caps) is not None
        if not crosses or (value.dtype in _STORED and not as_it_is):
            return Unsupported(
                f"tensor {value.name} is {value.dtype.value}, which stays on the CPU"
            )
        if value.elements == 0:
            return Unsupported(f"tensor {value.name} has no elements")
        # Padding the channels to a multiple of 4 can take up to four times the elements.
        channels = value.shape[-1] if value.shape else 1
        padded = value.elements // channels * -(-channels // 4) * 16
        if padded > min(site.caps.max_buffer_bytes, MAX_BYTES):
            return Unsupported(
                f"tensor {value.name} takes {padded} bytes on the device; the largest buffer "
                f"has {min(site.caps.max_buffer_bytes, MAX_BYTES)}",
                ReasonCode.DEVICE_LIMIT,
            )
    return None


def unchecked(node: Node, ops: Mapping[str, OpDef], *, strict: bool) -> str | None:
    """Which operand of a node has a number that the op refuses while the model runs, and a kernel
    does not, or with ``strict`` may have one; None where none has."""
    op = ops[node.op]
    for i in op.checked:
        value = node.optional_input(i)
        if value is None or not value.dtype.is_int:
            continue
        # Constant indices were checked when the model was opened; what is elementwise has divisors.
        if value.data is not None and op.elementwise and not value.data.all():
            return (
                f"operand {value.name} is a divisor with a 0, which is an error that no "
                "kernel can raise"
            )
        if value.data is None and strict:
            return (
                f"operand {value.name} may hold an index that is outside, or a divisor of 0, which "
                "strict=True makes an error, and no kernel can raise one"
            )
    return None
