"""FAKE_QUANT and BUCKETIZE: where a number lies among steps or boundaries. Computed in f32."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import FLOATS, ElementwiseRule, Site, takes
from tflgpu.ops.bucketize import Bucketize
from tflgpu.ops.fake_quant import FakeQuant, steps_of

# Each is a comparison in every kernel that the op joins.
_MOST_BOUNDARIES = 256


def _fake_quant(k: Builder, attributes: FakeQuant, operands: Sequence[Expr]) -> Expr:
    steps = steps_of(attributes)
    x = k.let(k.cast(operands[0], Scalar.F32), "wide")
    counted = k.let((k.clamp(x, steps.low, steps.high) - steps.low) * steps.inverse, "counted")
    below = k.let(k.call("floor", counted), "below")
    one, zero = k.const(1.0, x.type), k.const(0.0, x.type)
    whole = below + k.select(counted - below >= 0.5, one, zero)
    # From zero on, so that zero is exact even where a device multiplies and adds in one.
    return k.cast((whole - steps.zero) * steps.scale, operands[0].type.scalar)


def _bucketize(k: Builder, attributes: Bucketize, operands: Sequence[Expr]) -> Expr:
    x = k.let(k.cast(operands[0], Scalar.F32), "wide")
    one, zero = (
        k.const(1, x.type.with_scalar(Scalar.I32)),
        k.const(0, x.type.with_scalar(Scalar.I32)),
    )
    found = zero
    for boundary in attributes.boundaries:
        # Not "at least", which a NaN is not of anything.
        found = found + k.select(x < boundary, zero, one)
    return found


def _accepts_bucketize(node: Node, site: Site) -> str | None:
    boundaries = node.attrs.boundaries
    if len(boundaries) > _MOST_BOUNDARIES:
        return f"{len(boundaries)} boundaries; kernels compare with {_MOST_BOUNDARIES} at most"
    return takes(FLOATS | {DType.I32}, results=frozenset({DType.I32}))(node, site)


RULES = (
    ElementwiseRule("FAKE_QUANT", _fake_quant, takes(FLOATS)),
    ElementwiseRule("BUCKETIZE", _bucketize, _accepts_bucketize),
)
