"""Arithmetic and reductions of the same rows as one kernel: a team of invocations a row.

    mean = MEAN(x);  square = SQUARED_DIFFERENCE(x, mean);  MEAN(square);  ...  MUL(x, scale)

Numbers that are one a row are known to the whole team. Values with a number for each channel are
not kept: each use computes them anew from the tensors in memory and the row's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

from tflgpu.ir.graph import Node, Value
from tflgpu.kernels.domain import Domain, Shape2, Share, horizontal, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import F32x4, Scalar
from tflgpu.lowering.layout import Shape
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering
from tflgpu.lowering.rule import RowReduction
from tflgpu.lowering.view import ReadView, load_broadcast
from tflgpu.values import frozen


@frozen(eq=False)
class RowStep:
    """A node, and the expression of each of its elements or the reduction of each row."""

    node: Node
    does: Union[ElementwiseExpr, RowReduction]

    @property
    def result(self) -> Value:
        """The node's result."""
        return self.node.outputs[0]


def rows_shape(caps: DeviceCaps, shape: Shape) -> Shape2 | None:
    """The team for each row of ``shape``; None where rows are so long and so few that several
    workgroups would share one."""
    domain = Domain.of(shape, (len(shape) - 1,))
    found = team_shape(caps, domain.items, domain.steps, lanes_first=True, cut=1)
    return found if found.parts == 1 else None


def build_rows(low: Lowering, steps: Sequence[RowStep]) -> None:
    """Write the kernel of ``steps``, in an order in which they can run; the last one has an element
    for each of a row's."""
    shape = steps[-1].result.shape
    plan = rows_shape(low.caps, shape)
    assert plan is not None
    k = low.kernel("rows", plan.workgroup)
    made = {step.result.id for step in steps}
    outside = {
        v.id: v
        for step in steps
        for v in step.node.inputs[: 1 if isinstance(step.does, RowReduction) else None]
        if v is not None and v.id not in made
    }
    views = {v.id: low.read_value(k, v, f"src{i}") for i, v in enumerate(outside.values())}
    out = low.write(k)
    rows = _Rows(k, plan, shape, low.compute, views, {s.result.id: s for s in steps})
    for step in steps:
        if isinstance(step.does, RowReduction):
            rows.reduce(step, step.does)
        elif step.result.shape != shape:
            rows.once(step, step.does)
    last = steps[-1].result
    with k.if_(rows.at.valid):
        rows.each(lambda row, slice_: out.store(row, slice_, rows.element(last, row, slice_)))
    low.dispatch_groups(k, plan.groups)


class _Rows:
    """One kernel's rows: what is known of the row at hand, and how to compute the rest."""

    def __init__(
        self,
        k: Builder,
        plan: Shape2,
        shape: Shape,
        compute: Scalar,
        views: Mapping[int, ReadView],
        steps: Mapping[int, RowStep],
    ) -> None:
        self.k, self._shape, self._compute = k, shape, compute
        self._views, self._steps = views, steps
        self.at: Share = share_of(k, plan)
        self._domain = Domain.of(shape, (len(shape) - 1,))
        self._base, _ = self._domain.place(k, self.at.item)
        self._room: SharedArray | None = self.at.shared(F32x4)
        self._numbers: dict[int, Expr] = {}

    def each(self, body: Callable[[Expr, Expr], None]) -> None:
        """Run ``body(row, slice)`` for each of the invocation's vectors."""
        with self.k.loop(self.at.first, self.at.stop, self.at.shape.lanes, name="step") as step:
            body(*self._domain.address(self.k, self._base, self.k.i32(0), step))

    def element(
        self, value: Value, row: Expr, slice_: Expr, known: dict[int, Expr] | None = None
    ) -> Expr:
        """Four elements of a value; ``known`` are those that were computed for the same place."""
        known = {} if known is None else known
        if value.id in self._numbers:
            return self._numbers[value.id]
        if value.id not in known:
            step = self._steps.get(value.id)
            if step is None:
                found = load_broadcast(self._views[value.id], row, slice_, self._shape)
            else:
                assert not isinstance(step.does, RowReduction)
                operands = [
                    self.element(v, row, slice_, known) for v in step.node.inputs if v is not None
                ]
                found = step.does(self.k, step.node.attrs, operands)
                found = self.k.cast(found, self._compute)
            known[value.id] = self.k.let(found, "x")
        return known[value.id]

    def once(self, step: RowStep, expr: ElementwiseExpr) -> None:
        """Compute what is one number a row of others that are."""
        k, shape = self.k, step.result.shape
        operands = [
            self._numbers[v.id]
            if v.id in self._numbers
            else k.let(load_broadcast(self._views[v.id], self._base, k.i32(0), shape), "x")
            for v in step.node.inputs
            if v is not None
        ]
        found = k.let(k.cast(expr(k, step.node.attrs, operands), self._compute), "number")
        self._numbers[step.result.id] = k.let(k.splat(found.lane(0), 4), "number")

    def reduce(self, step: RowStep, reduction: RowReduction) -> None:
        """Merge a row to one number, in the order in which a kernel for that alone does it."""
        k, source, identity = self.k, step.node.input(0), reduction.identity

        def filled(row: Expr, slice_: Expr) -> Expr:
            x = k.cast(self.element(source, row, slice_), Scalar.F32)
            return self._domain.fill_padding(k, x, slice_, identity)

        if identity is None:  # any element may stand in for none
            some = k.let(k.min(self.at.first, self.at.shape.steps - 1), "some")
            place = self._domain.address(k, self._base, k.i32(0), some)
            total = k.var(filled(*place), "total")
        else:
            total = k.var(k.const(identity, F32x4), "total")
        self.each(lambda row, slice_: k.set(total, reduction.merge(k, total, filled(row, slice_))))
        flat = horizontal(k, total, lambda a, b: reduction.merge(k, a, b))
        whole = k.var(k.splat(k.let(flat, "h"), 4), "whole")
        self.at.combine(
            [self._room], [whole], lambda a, b: [reduction.merge(k, a[0], b[0])], everywhere=True
        )
        number = whole if reduction.scale is None else whole * reduction.scale
        self._numbers[step.result.id] = k.let(k.cast(number, self._compute), "number")
