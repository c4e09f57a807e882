"""The kernel of an elementwise node that could not join another kernel's store."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering
from tflgpu.lowering.rule import ElementwiseRule, KernelRule
from tflgpu.lowering.view import load_broadcast


def elementwise_kernel(expr: ElementwiseExpr) -> Callable[[Lowering], None]:
    """A generator: one invocation computes four channels at one position."""

    def build(low: Lowering) -> None:
        k = low.kernel(low.node.op.lower())
        operands = [v for v in low.node.inputs if v is not None]
        # One that is there twice is read once: no compiler has to find out what x - x is.
        views = {v: low.read(k, low.node.inputs.index(v)) for v in dict.fromkeys(operands)}
        out = low.write(k)
        with each_vector(low, k, out) as (outer, slice_):
            place, low.took_channel = (
                (outer, slice_, out.shape, low.channel),
                low.channel is not None,
            )
            values = {v: k.let(load_broadcast(view, *place), "x") for v, view in views.items()}
            out.store(outer, slice_, expr(k, low.attrs, [values[v] for v in operands]))

    return build


def as_kernel_rule(rule: ElementwiseRule) -> KernelRule:
    """The stand-alone form of an elementwise rule."""
    build = elementwise_kernel(rule.expr)
    return KernelRule(
        rule.op, "elementwise", build, rule.accepts, rank=-1, pointwise=True, owner=rule.owner
    )
