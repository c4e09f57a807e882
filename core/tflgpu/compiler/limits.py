"""What no kernel takes, whatever the op: types that cannot cross, empty or huge tensors."""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.ir.sizes import MAX_BYTES
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import Site, Unsupported
from tflgpu.ops.base import OpDef

_BYTES = frozenset({DType.I8, DType.U8})


def tensor_limits(node: Node, op: OpDef | None, site: Site) -> Unsupported | None:
    """``op`` is the node's definition, None where there is none. The reason why a node's tensors cannot be on a device, None where they can."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value.is_const:
            continue
        if value.is_variable and (op is None or op.states is None):
            return Unsupported(f"tensor {value.name} is a variable; state is kept on the CPU")
        as_it_is = op is not None and op.takes_stored
        crosses = site.integers.edge(value.dtype, site.caps) is not None
        if not crosses or (value.dtype in _BYTES and not as_it_is):
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
