"""QUANTIZED_TABLE: each element finds its step, and the step's entry."""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.ops.quantized_table import OP, QuantizedTable


def _build(low: Lowering) -> None:
    attributes: QuantizedTable = low.attrs
    k = low.kernel("quantized_table")
    view, table, out = low.read(k, 0), low.read(k, 1), low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        # In f32 in every precision: f16 has no room for the steps.
        x = k.cast(view.load(outer, slice_), Scalar.F32)
        steps = k.let(round_to_steps(k, attributes.operand, x), "steps")
        at = k.let(k.cast(steps, Scalar.I32) - attributes.operand.low, "at")
        found = k.let(k.vec([table.load_lane(k.i32(0), at.lane(n)) for n in range(4)]), "found")
        out.store(outer, slice_, k.cast(found, Scalar.F32) * attributes.result)


def _accepts(node: Node, site: Site) -> str | None:
    if node.input(1).contents is None:
        return f"{OP}: the table is made at run time"
    return takes(FLOATS, 1)(node, site)


RULES = (KernelRule(OP, "table", _build, _accepts),)
