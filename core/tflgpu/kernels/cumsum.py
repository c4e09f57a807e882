"""CUMSUM: one invocation adds up along a line; sums are in f32."""

from __future__ import annotations

from tflgpu.kernels.domain import Domain
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar, Type
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import NUMBERS, KernelRule, takes
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.axes import integers, normal_axis
from tflgpu.values import frozen


def _build(low: Lowering) -> None:
    source = low.node.input(0)
    (axis,) = integers(low.node.const(1))
    axis = normal_axis(low.node.op, axis, len(source.shape))
    domain = Domain.of(source.shape, (axis,))
    compute = Scalar.F32 if source.dtype.is_float else Scalar.I32
    k = low.kernel("cumsum")
    view, out = low.read(k, 0), low.write(k)
    item = k.let(k.global_id(0), "item")
    guard(k, item < domain.items)
    base, slice_ = domain.place(k, item)
    line = _Line(k, view, out, compute, low.attrs.exclusive, low.attrs.reverse)
    total = k.var(k.const(0, Type(compute, 1 if domain.over_channels else 4)), "total")
    with k.loop(0, domain.steps, name="i") as i:
        step = k.let(domain.steps - 1 - i, "step") if low.attrs.reverse else i
        row, at = domain.address(k, base, slice_, step)
        if domain.over_channels:
            line.within(row, at, total)
        else:
            line.across(row, at, total)
    low.dispatch(k, (domain.items, 1, 1))


@frozen
class _Line:
    """One invocation's line of elements."""

    k: Builder
    view: ReadView
    out: WriteView
    compute: Scalar
    exclusive: bool
    reverse: bool

    def across(self, row: Expr, slice_: Expr, total: Variable) -> None:
        """Four channels, each with its own sum."""
        k = self.k
        value = k.let(k.cast(self.view.load(row, slice_), self.compute), "x")
        before = k.let(total, "before")
        k.add_to(total, value)
        self.out.store(row, slice_, before if self.exclusive else total)

    def within(self, row: Expr, slice_: Expr, total: Variable) -> None:
        """Four neighbours of one sum. Lanes beyond the channels are zero and add nothing."""
        k = self.k
        value = k.let(k.cast(self.view.load(row, slice_), self.compute), "x")
        running: Expr = k.let(total, "before")
        sums: dict[int, Expr] = {}
        for lane in reversed(range(4)) if self.reverse else range(4):
            after = k.let(running + value.lane(lane), "sum")
            sums[lane] = running if self.exclusive else after
            running = after
        k.set(total, running)
        self.out.store(row, slice_, k.vec([sums[lane] for lane in range(4)]))


RULES = (KernelRule("CUMSUM", "line", _build, takes(NUMBERS, operands=1)),)
