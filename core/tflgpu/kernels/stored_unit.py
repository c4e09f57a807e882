"""STORED_UNIT: a team of invocations for every row, as L2_NORMALIZATION has, in f32, which has its
numbers."""

from __future__ import annotations

from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.kernels.softmax import SoftmaxRow
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.ops.fixed_functions import inverse_root
from tflgpu.ops.stored_unit import LARGEST, OP, UNIT, StoredUnit


def _build(low: Lowering) -> None:
    attributes: StoredUnit = low.attrs
    row = SoftmaxRow(low)
    k = row.k

    def steps(x: Expr) -> Expr:
        return k.let(round_to_steps(k, attributes.operand, x), "steps")

    def squared(x: Expr) -> Expr:
        whole = steps(x)
        return whole * whole

    total = row.total(squared)
    # Fractions of a step that are kept in between; they grow with the length, by its bits.
    parts: Expr = k.const(1.0, F32x4)
    number, before = 2, 0
    while number < LARGEST:
        right = inverse_root(number).right
        if right != before:
            parts = k.select(total >= float(number), k.const(float(1 << right), F32x4), parts)
            before = right
        number *= 2
    parts = k.let(parts, "parts")
    factor = k.let(parts * UNIT / k.call("sqrt", k.max(total, 1.0)), "factor")

    def unit(x: Expr) -> Expr:
        fine = k.let(k.call("floor", steps(x) * factor + 0.5) / parts, "fine")
        size = k.let(k.call("floor", k.call("abs", fine) + 0.5), "size")
        found = k.clamp(k.select(fine < 0.0, -size, size), -128.0, 127.0)
        return found * (1 / UNIT)

    row.store(unit)
    low.dispatch_groups(k, row.shape.groups)


RULES = (KernelRule(OP, "team", _build, takes(FLOATS)),)
