"""Comparisons, logic and selection; booleans are 0 or 1 in 32-bit whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.ir.graph import Node
from tflgpu.kernels.fixed_point import times
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering
from tflgpu.lowering.rule import ANY, BOOLS, NUMBERS, ElementwiseRule, KernelRule, Site, takes
from tflgpu.ops.compare import PARTS, InParts, chooses_rows


def _compare(fn: Callable[[Expr, Expr], Expr]) -> ElementwiseExpr:
    def expr(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
        a, b = operands
        if isinstance(attributes, InParts):
            a, b = _whole(k, attributes, operands)
        return k.cast(fn(a, b), Scalar.I32)

    return expr


def _whole(k: Builder, attributes: InParts, operands: Sequence[Expr]) -> Sequence[Expr]:
    # In f32 in every precision: f16 has no room for the steps.
    steps = [
        k.let(k.cast(round_to_steps(k, stored, k.cast(x, Scalar.F32)), Scalar.I32), "steps")
        for x, stored in zip(operands, (attributes.left, attributes.right), strict=True)
    ]
    if not attributes.factors:
        return steps
    return [
        k.let(times(k, x << PARTS, by), "parts")
        for x, by in zip(steps, attributes.factors, strict=True)
    ]


def _select(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    cond, x, y = operands
    return k.select(cond.ne(0), x, y)


def _accepts_select(node: Node, site: Site) -> str | None:
    if chooses_rows(node):
        return "SELECT: the condition chooses whole rows, which is not NumPy broadcasting"
    return takes(ANY)(node, site)


def _accepts_rows(node: Node, site: Site) -> str | None:
    if not chooses_rows(node):
        return "SELECT: the condition does not choose whole rows"
    return takes(ANY)(node, site)


def _select_rows(low: Lowering) -> None:
    """One invocation for four channels; the condition's element is that of the first index."""
    k = low.kernel("select_rows")
    cond, x, y = (low.read(k, i) for i in range(3))
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        row = outer // (out.layout.outer // out.shape[0])
        chosen = k.let(cond.load_lane(0, row).ne(0), "chosen")
        out.store(outer, slice_, k.select(chosen, x.load(outer, slice_), y.load(outer, slice_)))


RULES = (
    ElementwiseRule("EQUAL", _compare(lambda a, b: a.eq(b)), takes(ANY)),
    ElementwiseRule("NOT_EQUAL", _compare(lambda a, b: a.ne(b)), takes(ANY)),
    ElementwiseRule("LESS", _compare(lambda a, b: a < b), takes(NUMBERS)),
    ElementwiseRule("LESS_EQUAL", _compare(lambda a, b: a <= b), takes(NUMBERS)),
    ElementwiseRule("GREATER", _compare(lambda a, b: a > b), takes(NUMBERS)),
    ElementwiseRule("GREATER_EQUAL", _compare(lambda a, b: a >= b), takes(NUMBERS)),
    ElementwiseRule("LOGICAL_AND", _compare(lambda a, b: a.ne(0) & b.ne(0)), takes(BOOLS)),
    ElementwiseRule("LOGICAL_OR", _compare(lambda a, b: a.ne(0) | b.ne(0)), takes(BOOLS)),
    ElementwiseRule("SELECT", _select, _accepts_select),
    KernelRule("SELECT", "select_rows", _select_rows, _accepts_rows),
    ElementwiseRule("SELECT_V2", _select, takes(ANY)),
    ElementwiseRule("ZEROS_LIKE", lambda k, attributes, x: k.const(0, x[0].type), takes(ANY)),
)
