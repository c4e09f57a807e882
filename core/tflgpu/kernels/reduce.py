"""MEAN, SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_ANY, REDUCE_ALL.

Sums are in f32. Where a reduction has few results and many elements, workgroups first reduce
parts of them into a temporary, and a second dispatch reduces that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.domain import Domain, ItemSteps, Shape2, Share, horizontal, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar, type_of
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import BOOLS, FLOATS, NUMBERS, KernelRule, RowReduction, takes
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.axes import integers
from tflgpu.ops.reduce import reduced_axes
from tflgpu.values import frozen


@frozen
class Reduction:
    """How elements are merged; merging ``identity``, or the whole number next to it, changes
    nothing."""

    merge: Callable[[Builder, Expr, Expr], Expr]
    identity: float
    mean: bool = False


SUM = Reduction(lambda k, a, b: a + b, 0)
MEAN = Reduction(lambda k, a, b: a + b, 0, mean=True)
PRODUCT = Reduction(lambda k, a, b: a * b, 1)
MAXIMUM = Reduction(lambda k, a, b: k.max(a, b), -math.inf)
MINIMUM = Reduction(lambda k, a, b: k.min(a, b), math.inf)


@frozen
class _Stage:
    """One dispatch: every item's steps become one vector.

    ``row_channels`` is the size of the result's last dimension where an item is four rows, 0
    where it is one.
    """

    reduction: Reduction
    compute: Scalar
    domain: Domain
    row_channels: int = 0

    def write(
        self, k: Builder, shape: Shape2, view: ReadView, store: Callable[[Share, Expr], None]
    ) -> None:
        """The kernel's body."""
        at = share_of(k, shape)
        if not self.domain.over_channels:
            total = self._total(at, view, at.item)
        else:
            rows = [self._row(k, at.item, i) for i in range(4)] if self.row_channels else [at.item]
            found = [self._flat(k, self._total(at, view, row)) for row in rows]
            total = k.var(k.vec(found) if len(found) == 4 else k.splat(found[0], 4), "total")
        room = at.shared(type_of(self.compute, 4))
        at.combine([room], [total], lambda a, b: [self.reduction.merge(k, a[0], b[0])])
        with k.if_(at.lane.eq(0) & at.valid):
            store(at, total)

    def _row(self, k: Builder, item: Expr, lane: int) -> Expr:
        """The row of one of a result's lanes; past the last channel, that of the last one."""
        slices = -(-self.row_channels // 4)
        channel = k.min(item % slices * 4 + lane, self.row_channels - 1)
        return k.let(item // slices * self.row_channels + channel, "at")

    def _flat(self, k: Builder, total: Expr) -> Expr:
        return k.let(horizontal(k, total, lambda a, b: self.reduction.merge(k, a, b)), "h")

    def _total(self, at: Share, view: ReadView, item: Expr) -> Variable:
        """This invocation's steps of an item, merged."""
        k, identity = at.k, self.reduction.identity
        if self.compute is Scalar.I32:
            identity = int(min(max(identity, -(2**31)), 2**31 - 1))
        steps = ItemSteps(at, self.domain, view, self.compute, item)

        def filled(value: Expr, slice_: Expr) -> Expr:
            if not self.domain.over_channels or identity == 0:
                return value  # the lanes beyond the channels are zero
            return self.domain.fill_padding(k, value, slice_, identity)

        total = k.var(k.const(identity, type_of(self.compute, 4)), "total")
        steps.each(
            lambda row, slice_, value: k.set(
                total, self.reduction.merge(k, total, filled(value, slice_))
            )
        )
        return total


def _build(reduction: Reduction) -> Callable[[Lowering], None]:
    def build(low: Lowering) -> None:
        source, name = low.node.input(0), low.node.op.lower()
        axes = reduced_axes(low.node.op, integers(low.node.const(1)), len(source.shape))
        domain = Domain.of(source.shape, axes)
        result = low.layout(low.node.outputs[0])
        rows = result.channels if domain.over_channels and result.channels > 1 else 0
        items = result.outer * result.slices
        floats = source.dtype.is_float
        compute = Scalar.F32 if floats else Scalar.I32
        # A temporary holds floats; other reductions are not split.
        shape = team_shape(
            low.caps, items, domain.steps, lanes_first=domain.over_channels, cut=int(floats)
        )
        stage = _Stage(reduction, compute, domain, rows)
        scale = 1.0 / domain.count if reduction.mean else None
        if shape.parts == 1:
            k = low.kernel(name, shape.workgroup)
            stage.write(k, shape, low.read(k, 0), _final(k, low.write(k), scale))
            low.dispatch_groups(k, shape.groups)
            return
        temp = low.temp((items, shape.parts, 4), Scalar.F32)
        k = low.kernel(f"{name}_parts", shape.workgroup)
        view, parts = low.read(k, 0), low.write_temp(k, temp)
        stage.write(
            k, shape, view, lambda at, value: parts.store(at.item * shape.parts + at.part, 0, value)
        )
        low.dispatch_groups(k, shape.groups)

        last = _Stage(reduction, compute, Domain.of((items, shape.parts, 4), (1,)))
        ending = team_shape(low.caps, items, shape.parts, lanes_first=False)
        k = low.kernel(name, ending.workgroup)
        last.write(k, ending, low.read_temp(k, temp), _final(k, low.write(k), scale))
        low.dispatch_groups(k, ending.groups)

    return build


def _final(k: Builder, out: WriteView, scale: float | None) -> Callable[[Share, Expr], None]:
    def store(at: Share, value: Expr) -> None:
        outer, slice_ = k.let(at.item // out.slices, "outer"), k.let(at.item % out.slices, "slice")
        out.store(outer, slice_, value if scale is None else value * scale)

    return store


def _rows(op: str, reduction: Reduction) -> Callable[[Node], RowReduction | None]:
    def rows(node: Node) -> RowReduction | None:
        shape = node.input(0).shape
        if node.input(1).contents is None or not shape or not node.input(0).dtype.is_float:
            return None
        axes = reduced_axes(op, integers(node.const(1)), len(shape))
        along = [axis for axis in axes if shape[axis] != 1]
        if along != [len(shape) - 1] or not node.attrs.keep_dims:
            return None
        scale = 1.0 / shape[-1] if reduction.mean else None
        return RowReduction(reduction.merge, reduction.identity, scale)

    return rows


def _rule(op: str, reduction: Reduction, types: frozenset[DType] = NUMBERS) -> KernelRule:
    accepts = takes(types, operands=1)
    return KernelRule(
        op, "team", _build(reduction), accepts, reads_once=True, rows=_rows(op, reduction)
    )


RULES = (
    _rule("MEAN", MEAN, FLOATS),
    _rule("SUM", SUM),
    _rule("REDUCE_PROD", PRODUCT),
    _rule("REDUCE_MAX", MAXIMUM),
    _rule("REDUCE_MIN", MINIMUM),
    _rule("REDUCE_ANY", MAXIMUM, BOOLS),
    _rule("REDUCE_ALL", MINIMUM, BOOLS),
)
