"""ARG_MAX and ARG_MIN: positions of extremes; of equal elements the first, NaN only of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tflgpu.kernels.domain import Domain, ItemSteps, Share, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4, Scalar, Type
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import NUMBERS, KernelRule, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.axes import integers, normal_axis
from tflgpu.values import frozen

Found = Sequence[Expr]  # values and their positions


@frozen
class _Search:
    """The search of one node."""

    k: Builder
    domain: Domain
    compute: Scalar
    largest: bool

    def better(self, a: Expr, b: Expr) -> Expr:
        """Whether ``b`` beats ``a``."""
        return b > a if self.largest else b < a

    def merge(self, a: Found, b: Found) -> list[Expr]:
        """The better of two, lane by lane; of equal ones that with the lower position."""
        k = self.k
        tie = a[0].eq(b[0]) & (b[1] < a[1])
        take = k.let(self.better(a[0], b[0]) | tie, "take")
        return [k.select(take, b[0], a[0]), k.select(take, b[1], a[1])]

    def scan(self, at: Share, view: ReadView, item: Expr) -> list[Variable]:
        """The best of this invocation's steps, in each lane."""
        k, domain = self.k, self.domain
        steps = ItemSteps(at, domain, view, self.compute, item)
        some, start = steps.any()
        best = k.var(self._filled(start, some), "best")
        first = k.min(at.first, at.shape.steps - 1)
        where = k.var(self._positions(some, first), "where")

        def look(row: Expr, slice_: Expr, value: Expr, step: Expr) -> None:
            merged = self.merge(
                [best, where], [self._filled(value, slice_), self._positions(slice_, step)]
            )
            chosen = [k.let(m, "m") for m in merged]
            k.set(best, chosen[0])
            k.set(where, chosen[1])

        steps.each_numbered(look)
        return [best, where]

    def _filled(self, value: Expr, slice_: Expr) -> Expr:
        if self.compute is Scalar.F32:
            # Comparisons with a NaN are false: an infinity loses against any number.
            last = -math.inf if self.largest else math.inf
            value = self.k.select(value.ne(value), last, value)
        return self.domain.fill_padding(self.k, value, slice_, None) if self.over else value

    @property
    def over(self) -> bool:
        """Whether the axis is that of the channels."""
        return self.domain.over_channels

    def _positions(self, slice_: Expr, step: Expr) -> Expr:
        k = self.k
        if not self.over:
            return k.splat(step, 4)
        first = k.let(slice_ * 4, "c")
        lanes = k.vec([first + i for i in range(4)])
        return self.domain.fill_padding(k, lanes, slice_, None)

    def flat(self, found: Found) -> tuple[Expr, Expr]:
        """The best of four lanes."""
        value, where = found
        best: list[Expr] = [value.lane(0), where.lane(0)]
        for i in range(1, 4):
            merged = self.merge(best, [value.lane(i), where.lane(i)])
            best = [self.k.let(m, "m") for m in merged]
        return best[0], best[1]


def _build(largest: bool) -> Callable[[Lowering], None]:
    def build(low: Lowering) -> None:
        source = low.node.input(0)
        (axis,) = integers(low.node.const(1))
        axis = normal_axis(low.node.op, axis, len(source.shape))
        domain = Domain.of(source.shape, (axis,))
        result = low.layout(low.node.outputs[0])
        shape = team_shape(
            low.caps, result.outer * result.slices, domain.steps, lanes_first=domain.over_channels
        )
        k = low.kernel(low.node.op.lower(), shape.workgroup)
        view, out = low.read(k, 0), low.write(k)
        compute = Scalar.F32 if source.dtype.is_float else Scalar.I32
        search = _Search(k, domain, compute, largest)
        at = share_of(k, shape)
        if domain.over_channels:
            lanes = min(4, result.channels)
            rows = [_row(k, at.item, i, result.channels) for i in range(lanes)]
            flat = [search.flat(search.scan(at, view, row)) for row in rows]
            flat += flat[:1] * (4 - lanes)
            best = k.var(k.vec([f[0] for f in flat]), "value")
            where = k.var(k.vec([f[1] for f in flat]), "position")
        else:
            best, where = search.scan(at, view, at.item)
        rooms = [at.shared(Type(compute, 4)), at.shared(I32x4, "positions")]
        at.combine(rooms, [best, where], search.merge)
        with k.if_(at.lane.eq(0) & at.valid):
            outer = k.let(at.item // out.slices, "outer")
            out.store(outer, k.let(at.item % out.slices, "slice"), where)
        low.dispatch_groups(k, shape.groups)

    return build


def _row(k: Builder, item: Expr, lane: int, channels: int) -> Expr:
    """The row of one of a result's lanes; past the last channel, that of the last one."""
    slices = -(-channels // 4)
    channel = k.min(item % slices * 4 + lane, channels - 1)
    return k.let(item // slices * channels + channel, "at")


RULES = tuple(
    KernelRule(op, "team", _build(op == "ARG_MAX"), takes(NUMBERS, operands=1), reads_once=True)
    for op in ("ARG_MAX", "ARG_MIN")
)
