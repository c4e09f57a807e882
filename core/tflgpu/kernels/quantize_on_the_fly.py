"""QUANTIZE_ON_THE_FLY: a team finds the range of a row, and rounds the row over it.

Where there are few long rows (images) a single team would work while the device is idle. Then
many teams look for the ranges of parts, and two more dispatches merge these and round.
"""

from __future__ import annotations

import math

from tflgpu.ir.graph import Node
from tflgpu.kernels.domain import Domain, ItemSteps, Shape2, Share, horizontal, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32, F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.ops.quantize_on_the_fly import HIGH, LOW, OP, SIDE
from tflgpu.ops.quantized import Rounding


def _build(low: Lowering) -> None:
    shape, attributes = low.node.input(0).shape, low.attrs
    domain = Domain.of(shape, attributes.axes)
    teams = team_shape(
        low.caps, domain.items, domain.steps, lanes_first=domain.over_channels, cut=1
    )
    if teams.parts == 1:
        k = low.kernel("on_the_fly", teams.workgroup)
        view, out = low.read(k, 0), low.write(k)
        at = share_of(k, teams)
        steps, lowest, highest = _range(at, domain, view)
        rounding = RoundingOver(k, attributes.rounding, lowest, highest)
        with k.if_(at.valid):
            steps.each(lambda row, slice_, x: out.store(row, slice_, rounding.of(x)))
        low.dispatch_groups(k, teams.groups)
        return
    ends = _ends_of_parts(low, domain, teams)
    _round(low, domain, _ends(low, teams, ends))


def _range(at: Share, domain: Domain, view: ReadView) -> tuple[ItemSteps, Variable, Variable]:
    """The lowest and the highest element of an item, four lanes each, which all members have."""
    k = at.k
    width = 1 if domain.over_channels else 4
    rooms = [at.shared(F32 if width == 1 else F32x4, name) for name in ("lows", "highs")]
    steps = ItemSteps(at, domain, view, Scalar.F32)
    slice_, some = steps.any()
    first = k.let(domain.fill_padding(k, some, slice_, None) if width == 1 else some, "first")
    low, high = k.var(first, "low"), k.var(first, "high")

    def widen(row: Expr, slice_: Expr, x: Expr) -> None:
        x = k.let(domain.fill_padding(k, x, slice_, None) if width == 1 else x, "x")
        k.set(low, k.min(low, x))
        k.set(high, k.max(high, x))

    steps.each(widen)
    if width == 1:
        low, high = (
            k.var(horizontal(k, ends, of), "end") for ends, of in ((low, k.min), (high, k.max))
        )
    at.combine(
        rooms, [low, high], lambda a, b: [k.min(a[0], b[0]), k.max(a[1], b[1])], everywhere=True
    )
    return steps, low, high


class RoundingOver:
    """The steps of one row, from the ends of its range: a number, or four lanes of rows.

    Attributes:
        scale: The size of a step; not finite where the row is not.
        zero: The step that stands for 0, None where that is step 0.
    """

    zero: Expr | None = None

    def __init__(self, k: Builder, rounding: Rounding, low: Expr, high: Expr) -> None:
        self.k, self._even = k, rounding is Rounding.EVEN
        self._symmetric = rounding is Rounding.SYMMETRIC
        if low.type.width == 1:
            low, high = (k.splat(end, 4) for end in (low, high))
        if self._symmetric:
            reach = k.let(k.max(k.call("abs", low), k.call("abs", high)), "reach")
            self.scale, self._inverse = self._factors(reach, float(SIDE))
            return
        low, high = k.let(k.min(low, 0.0), "low"), k.let(k.max(high, 0.0), "high")
        self.scale, self._inverse = self._factors(k.let(high - low, "reach"), float(HIGH - LOW))
        below, above = k.let(low * self._inverse, "below"), k.let(high * self._inverse, "above")
        nearer = k.call("abs", below) - LOW < k.call("abs", above) + HIGH
        zero = self._whole(k.select(nearer, LOW - below, HIGH - above))
        if self._even:  # which a division that is not exact must not decide
            zero = k.select(high.eq(-low), 0.0, zero)
        self.zero = k.let(k.clamp(zero, float(LOW), float(HIGH)), "zero")

    def _factors(self, reach: Expr, steps: float) -> tuple[Expr, Expr]:
        """A step and its inverse; 1 where all of a row is 0."""
        k = self.k
        empty = k.let(reach.eq(0.0), "empty")
        if self._even:
            inverse = k.let(k.select(empty, 1.0, steps / reach), "inverse")
            return k.let(1.0 / inverse, "scale"), inverse
        scale = k.let(k.select(empty, 1.0, reach / steps), "scale")
        inverse = steps / reach if self._symmetric else 1.0 / scale
        return scale, k.let(k.select(empty, 1.0, inverse), "inverse")

    def of(self, x: Expr) -> Expr:
        """Four lanes of the row, rounded."""
        step = self.step(x)
        return (step if self.zero is None else step - self.zero) * self.scale

    def step(self, x: Expr) -> Expr:
        """The steps that four lanes of the row are rounded to, as whole f32."""
        k = self.k
        exact = k.let(x * self._inverse, "exact")
        if self.zero is None:
            return k.clamp(self._whole(exact), -float(SIDE), float(SIDE))
        whole = k.call("round", exact) + self.zero if self._even else self._whole(self.zero + exact)
        return k.clamp(whole, float(LOW), float(HIGH))

    def _whole(self, x: Expr) -> Expr:
        k = self.k
        if self._even:
            return k.call("round", x)
        x = k.let(x, "x")
        size = k.let(k.call("floor", k.call("abs", x) + 0.5), "size")
        return k.let(k.select(x < 0.0, -size, size), "whole")


# Few long rows


def _ends_of_parts(low: Lowering, domain: Domain, teams: Shape2) -> tuple[Temp, Temp]:
    """The ends of the range of each part of each item, [items, parts, 4] each."""
    temps = tuple(low.temp((teams.items, teams.parts, 4), Scalar.F32) for _ in range(2))
    k = low.kernel("range_of_parts", teams.workgroup)
    view = low.read(k, 0)
    outs = [
        low.write_temp(k, temp, name) for temp, name in zip(temps, ("low", "high"), strict=True)
    ]
    at = share_of(k, teams)
    _, *ends = _range(at, domain, view)
    with k.if_(at.lane.eq(0) & at.valid):
        for out, end in zip(outs, ends, strict=True):
            value = k.splat(end, 4) if end.type.width == 1 else end
            out.store(at.item * teams.parts + at.part, 0, value)
    low.dispatch_groups(k, teams.groups)
    return temps[0], temps[1]


def _ends(low: Lowering, teams: Shape2, parts: tuple[Temp, Temp]) -> tuple[Temp, Temp]:
    """The ends of the range of each item, [items, 4] each."""
    temps = tuple(low.temp((teams.items, 4), Scalar.F32) for _ in range(2))
    k = low.kernel("ranges")
    found = [
        low.read_temp(k, temp, name) for temp, name in zip(parts, ("lows", "highs"), strict=True)
    ]
    outs = [
        low.write_temp(k, temp, name) for temp, name in zip(temps, ("low", "high"), strict=True)
    ]
    item = k.let(k.global_id(0), "item")
    guard(k, item < teams.items)
    first = k.let(item * teams.parts, "first")
    for view, out, of in zip(found, outs, (k.min, k.max), strict=True):
        end = k.var(view.load(first, 0), "end")
        with k.loop(1, teams.parts, name="part") as part:
            k.set(end, of(end, view.load(first + part, 0)))
        out.store(item, 0, end)
    low.dispatch(k, (teams.items, 1, 1))
    return temps[0], temps[1]


def _round(low: Lowering, domain: Domain, ends: tuple[Temp, Temp]) -> None:
    """Every vector of four by itself."""
    shape, attributes = low.node.input(0).shape, low.attrs
    k = low.kernel("round_on_the_fly")
    view = low.read(k, 0)
    found = [low.read_temp(k, temp, name) for temp, name in zip(ends, ("low", "high"), strict=True)]
    out = low.write(k)
    slice_, row = (
        k.let(k.global_id(0) % out.slices, "slice"),
        k.let(k.global_id(0) // out.slices, "row"),
    )
    rows = out.layout.outer
    guard(k, row < rows)
    places = decompose(k, row, shape[:-1])
    item: Expr = k.i32(0)
    for axis, place in enumerate(places):
        if axis not in attributes.axes:
            item = item * shape[axis] + place
    if not domain.over_channels:
        item = item * domain.slices + slice_
    item = k.let(item, "item")
    rounding = RoundingOver(k, attributes.rounding, *(k.let(v.load(item, 0), "end") for v in found))
    out.store(row, slice_, rounding.of(k.cast(view.load(row, slice_), Scalar.F32)))
    low.dispatch(k, (rows * out.slices, 1, 1))


def _row_change(node: Node) -> RowChange | None:
    shape, axes = node.input(0).shape, node.attrs.axes
    first = len(shape) - len(axes)
    if sorted(axes) != list(range(first, len(shape))):
        return None
    return RowChange(math.prod(shape[first:]), rounding=node.attrs.rounding)


RULES = (KernelRule(OP, "team", _build, takes(FLOATS), row_change=_row_change),)
