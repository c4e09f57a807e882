"""MEAN_STDDEV_NORMALIZATION: a team of invocations for every mean and variance.

The variance is the mean square of the differences from the mean, never the difference of two
large sums. Where there are few means of many elements (instance normalization of images), a
first dispatch makes mean and squared differences of parts, and the second one, in which every
workgroup merges the parts for itself, normalizes the same parts.

A group of channels is a row of a tensor of another shape, of the same bytes, where it is a multiple
of four channels. Else two or four groups are a row, whose sums are a lane for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from tflgpu.ir.graph import Node, Shape
from tflgpu.kernels.domain import Domain, ItemSteps, Shape2, Share, horizontal, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import F32x4, Scalar
from tflgpu.lowering.layout import Layout
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import reduced_axes


class Moments:
    """A team's sums over its share of an item, known to all its invocations."""

    def __init__(self, k: Builder, shape: Shape2, domain: Domain, view: ReadView) -> None:
        self.k, self.domain = k, domain
        self.at: Share = share_of(k, shape)
        self.steps = ItemSteps(self.at, domain, view, Scalar.F32)
        self._room: SharedArray | None = self.at.shared(F32x4)

    def total(self, of: Callable[[Expr, Expr], Expr]) -> Expr:
        """The sum of ``of(element, slice)``; where the channels are summed too, in every lane, or
        in a lane for each group."""
        k, domain = self.k, self.domain
        sums = k.var(k.f32(0.0, 4), "sums")

        def add(row: Expr, slice_: Expr, x: Expr) -> None:
            term = of(x, slice_)
            if domain.groups > 1:
                term = self._by_group(k.let(term, "term"), slice_)
            elif domain.over_channels:
                term = domain.fill_padding(k, term, slice_, 0)
            k.add_to(sums, term)

        self.steps.each(add)
        if domain.over_channels and domain.groups == 1:
            k.set(sums, k.splat(horizontal(k, sums, lambda a, b: a + b), 4))
        return self.spread(sums)

    def spread(self, sums: Expr) -> Expr:
        """Sums of the invocations that share an item, added up for each of them."""
        k = self.k
        value = k.var(sums, "total")
        self.at.combine([self._room], [value], lambda a, b: [a[0] + b[0]], everywhere=True)
        return k.let(value, "sum")

    def centred_square(self, mean: Expr) -> Callable[[Expr, Expr], Expr]:
        """``(x - mean) ** 2``."""

        def of(x: Expr, slice_: Expr) -> Expr:
            gap = self.k.let(x - self.lanes(mean, slice_), "gap")
            return gap * gap

        return of

    def lanes(self, found: Expr, slice_: Expr) -> Expr:
        """For each lane of a slice what was found of its group."""
        if self.domain.groups == 1:
            return found
        k, lanes = self.k, []
        for group in self._groups_of(slice_):
            lane = found.lane(0)
            for other in range(1, self.domain.groups):
                lane = k.select(group.eq(other), found.lane(other), lane)
            lanes.append(lane)
        return k.vec(lanes)

    def _by_group(self, term: Expr, slice_: Expr) -> Expr:
        """The sums of a slice's lanes that are of a group, in a lane for each group."""
        k, groups, sums = self.k, self._groups_of(slice_), []
        for number in range(4):
            mine = [k.select(g.eq(number), term.lane(i), k.f32(0.0)) for i, g in enumerate(groups)]
            sums.append(mine[0] + mine[1] + mine[2] + mine[3])
        return k.vec(sums)

    def _groups_of(self, slice_: Expr) -> list[Expr]:
        """The groups of a slice's lanes."""
        return [self.k.let((slice_ * 4 + i) // self.domain.width, "group") for i in range(4)]


def _build(low: Lowering) -> None:
    shape, axes, groups = _blocks(low.attrs, low.node.input(0).shape)
    domain = attrs.evolve(Domain.of(shape, axes), groups=groups)
    # Parts end with whole rows of channels, so that their elements can be counted.
    cut = domain.slices if domain.over_channels else 1
    plan = team_shape(
        low.caps, domain.items, domain.steps, lanes_first=domain.over_channels, cut=cut
    )
    if plan.parts == 1:
        _at_once(low, domain, plan)
    else:
        _in_parts(low, domain, plan)


def _read(low: Lowering, k: Builder) -> ReadView:
    """The operand, of a shape that has an axis for groups."""
    source = low.read(k, 0)
    return attrs.evolve(source, layout=_in_groups(source.layout, low.attrs))


def _in_groups(layout: Layout, attributes: MeanStddev) -> Layout:
    return attrs.evolve(layout, shape=_blocks(attributes, layout.shape)[0])


def _blocks(attributes: MeanStddev, shape: Shape) -> tuple[Shape, tuple[int, ...], int]:
    """A shape with an axis for as many groups together as fill whole vectors, the axes that are
    normalized over then, and how many groups that are."""
    (*outer, width), axes = attributes.grouped(shape)
    together = 1 if attributes.groups == 1 else 4 // math.gcd(4, width)
    if together > 1:
        outer[-1] //= together
    return (*outer, width * together), axes, together


def _normalize(moments: Moments, out: WriteView, mean: Expr, scale: Expr, slices: int) -> None:
    """Write an item, whose rows have so many vectors."""
    k = moments.k

    def store(row: Expr, slice_: Expr, x: Expr) -> None:
        value = (x - moments.lanes(mean, slice_)) * moments.lanes(scale, slice_)
        if slices != out.slices:
            flat = k.let(row * slices + slice_, "flat")
            row, slice_ = k.let(flat // out.slices, "row"), k.let(flat % out.slices, "slice")
        out.store(row, slice_, value)

    with k.if_(moments.at.valid):
        moments.steps.each(store)


def _at_once(low: Lowering, domain: Domain, plan: Shape2) -> None:
    k = low.kernel("normalize", plan.workgroup)
    view, out = _read(low, k), low.write(k)
    low.body(k, _write, domain, plan, view, out, low.attrs.epsilon)
    low.dispatch_groups(k, plan.groups)


def _write(
    k: Builder, domain: Domain, plan: Shape2, view: ReadView, out: WriteView, epsilon: float
) -> None:
    moments = Moments(k, plan, domain, view)
    mean = k.let(moments.total(lambda x, _: x) * (1.0 / domain.count), "mean")
    squares = moments.total(moments.centred_square(mean))
    scale = _scale(k, squares, domain.count, epsilon)
    _normalize(moments, out, mean, scale, view.slices)


def _scale(k: Builder, squares: Expr, count: int, epsilon: float) -> Expr:
    return k.let(k.call("rsqrt", squares * (1.0 / count) + epsilon), "scale")


def _in_parts(low: Lowering, domain: Domain, plan: Shape2) -> None:
    temp = low.temp((plan.items, plan.parts, 8), Scalar.F32)  # means, then squared differences
    _moments_of_parts(low, domain, plan, temp)
    k = low.kernel("normalize", plan.workgroup)
    view, parts, out = _read(low, k), low.read_temp(k, temp), low.write(k)
    low.body(k, _write_from_parts, domain, plan, view, parts, out, low.attrs.epsilon)
    low.dispatch_groups(k, plan.groups)


def _write_from_parts(
    k: Builder,
    domain: Domain,
    plan: Shape2,
    view: ReadView,
    parts: ReadView,
    out: WriteView,
    epsilon: float,
) -> None:
    moments = Moments(k, plan, domain, view)
    at = moments.at
    first = k.let(at.item * plan.parts, "first_part")

    def over_parts(of: Callable[[Expr, Expr], Expr]) -> Expr:
        sums = k.var(k.f32(0.0, 4), "sums")
        with k.loop(at.lane, plan.parts, plan.lanes, name="p") as p:
            k.add_to(sums, of(first + p, _elements(k, domain, plan, p)))
        return moments.spread(sums)

    weighted = over_parts(lambda part, n: parts.load(part, 0) * n)
    mean = k.let(weighted * (1.0 / domain.count), "mean")

    def about_the_mean(part: Expr, n: Expr) -> Expr:
        gap = k.let(parts.load(part, 0) - mean, "gap")
        return parts.load(part, 1) + gap * gap * n

    scale = _scale(k, over_parts(about_the_mean), domain.count, epsilon)
    _normalize(moments, out, mean, scale, view.slices)


def _moments_of_parts(low: Lowering, domain: Domain, plan: Shape2, temp: Temp) -> None:
    k = low.kernel("normalize_parts", plan.workgroup)
    view, parts = _read(low, k), low.write_temp(k, temp)
    low.body(k, _write_parts, domain, plan, view, parts)
    low.dispatch_groups(k, plan.groups)


def _write_parts(
    k: Builder, domain: Domain, plan: Shape2, view: ReadView, parts: WriteView
) -> None:
    moments = Moments(k, plan, domain, view)
    at = moments.at
    count = k.let(_elements(k, domain, plan, at.part), "n")
    mean = k.let(moments.total(lambda x, _: x) / count, "mean")
    squares = moments.total(moments.centred_square(mean))
    with k.if_(at.lane.eq(0) & at.valid):
        place = k.let(at.item * plan.parts + at.part, "place")
        parts.store(place, 0, mean)
        parts.store(place, 1, squares)


def _elements(k: Builder, domain: Domain, plan: Shape2, part: Expr) -> Expr:
    """Elements of a part of an item (in one lane where the channels are kept), as f32x4."""
    rows = domain.slices if domain.over_channels else 1
    each = domain.width if domain.over_channels else 1
    full = plan.chunk // rows * each
    last = (plan.steps - (plan.parts - 1) * plan.chunk) // rows * each
    chosen = k.select(part < plan.parts - 1, k.f32(full), k.f32(last))
    return k.splat(chosen, 4)


_floats = takes(FLOATS)


def _accepts(node: Node, site: Site) -> str | None:
    channels, groups = node.input(0).shape[-1], node.attrs.groups
    if groups != 1 and channels % math.lcm(4, channels // groups):
        return f"{NAME}: {groups} groups of {channels // groups} channels, which fill no vectors"
    return _floats(node, site)


def _row_change(node: Node) -> RowChange | None:
    shape, made = node.input(0).shape, node.attrs
    if made.groups != 1 or reduced_axes(NAME, made.axes, len(shape)) != (len(shape) - 1,):
        return None
    return RowChange(shape[-1], made.epsilon, centred=True)


RULES = (KernelRule(NAME, "team", _build, _accepts, reads_once=True, row_change=_row_change),)
