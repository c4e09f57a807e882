"""Which element types a kernel takes, as `KernelRule.accepts` functions."""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.lowering.rule import Accepts, Site

#: Floats are computed in the precision's type, the rest in 32-bit whole numbers.
FLOATS = frozenset({DType.F32, DType.F16})
NUMBERS = FLOATS | {DType.I32}
BOOLS = frozenset({DType.BOOL})
ANY = NUMBERS | BOOLS
#: In buffers only, for conversions: a load widens them.
BYTES = frozenset({DType.I8, DType.U8})


def takes(
    allowed: frozenset[DType], operands: int | None = None, *, results: frozenset[DType] = ANY
) -> Accepts:
    """Accepts nodes whose first ``operands`` operands (None = all) have one of these types and
    whose results have one of ``results``."""

    def accepts(node: Node, site: Site) -> str | None:
        inputs = node.inputs if operands is None else node.inputs[:operands]
        for value in inputs:
            if value is not None and value.dtype not in allowed:
                return _refusal(node, f"operand {value.name}", value.dtype, allowed)
        for value in node.outputs:
            if value.dtype not in results:
                return _refusal(node, f"result {value.name}", value.dtype, results)
        return None

    return accepts


def _refusal(node: Node, what: str, dtype: DType, allowed: frozenset[DType]) -> str:
    names = ", ".join(sorted(d.value for d in allowed))
    return f"{node.op}: {what} is {dtype.value}; its kernels take {names}"
