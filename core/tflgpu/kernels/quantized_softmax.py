"""QUANTIZED_SOFTMAX: a team of invocations for every row, in whole numbers of 32 bits."""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.kernels.softmax import SoftmaxRow
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.ops.quantized_softmax import OP, SIZE, STEP, QuantizedSoftmax

#: A sum is kept in two parts, both of which f32 holds exactly.
_PART = 256


def _build(low: Lowering) -> None:
    attributes: QuantizedSoftmax = low.attrs
    row = SoftmaxRow(low)
    k = row.k
    exponentials, reciprocals = low.read(k, 1), low.read(k, 2)

    def steps(x: Expr) -> Expr:
        return round_to_steps(k, attributes.operand, x)

    largest = row.maximum(steps)

    def exponential(x: Expr) -> Expr:
        # Lanes beyond the row hold anything.
        below = k.clamp(largest - steps(x), 0.0, float(SIZE - 1))
        at = k.let(k.cast(below, Scalar.I32), "at")
        return k.let(k.vec([exponentials.load_lane(k.i32(0), at.lane(n)) for n in range(4)]), "e")

    def upper(x: Expr) -> Expr:
        return k.cast(exponential(x) // _PART, Scalar.F32)

    def lower(x: Expr) -> Expr:
        return k.cast(exponential(x) % _PART, Scalar.F32)

    parts = [k.cast(row.total(of).lane(0), Scalar.I32) for of in (upper, lower)]
    total = k.var(k.max(parts[0] * _PART + parts[1], 1), "total")
    # Shifted so that its highest bit is bit 30; 2 ** 30 shifted to the right as far.
    divisor = k.var(k.i32(1 << 30), "divisor")
    for bits in (16, 8, 4, 2, 1):
        with k.if_(total < (1 << (31 - bits))):
            k.set(total, total * (1 << bits))
            k.set(divisor, divisor // (1 << bits))
    place = total // (1 << 14) + (total // (1 << 13)) % 2 - (1 << 16)
    place = k.let(k.clamp(place, 0, SIZE - 1), "place")
    r = k.let(k.splat(reciprocals.load_lane(k.i32(0), place), 4), "r")
    by = k.let(k.splat(divisor, 4), "by")
    half = k.let(by // 2, "half")
    row.store(lambda x: k.cast(k.min((exponential(x) * r + half) // by, 32767), Scalar.F32) * STEP)
    low.dispatch_groups(k, row.shape.groups)


def _accepts(node: Node, site: Site) -> str | None:
    if node.input(1).contents is None or node.input(2).data is None:
        return f"{OP}: a table is made at run time"
    return takes(FLOATS, 1)(node, site)


RULES = (KernelRule(OP, "team", _build, _accepts),)
