"""RMS_NORMALIZATION, LAYER_NORMALIZATION and GROUP_NORMALIZATION: one kernel each, in which a team
of invocations makes the sums of a row or group, in f32, and writes it, scaled and shifted.

A group of channels is a row of a tensor of another shape, of the same bytes, where it is a multiple
of four channels. Others, and groups so large that several teams had better share one, are left to
the operators that they are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernels.domain import Domain, team_shape
from tflgpu.kernels.normalize import Moments
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.layout import Layout, Shape
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.composite_norms import GROUP, LAYER, RMS

#: (sums, number of elements, epsilon) -> element -> the same normalized.
_Normal = Callable[[Moments, int, float], Callable[[Expr], Expr]]
#: Those that a group is of, in the shape in which it is a row of channels.
_GROUP_AXES = (1, 3)


def _of_square(sums: Moments, count: int, epsilon: float) -> Callable[[Expr], Expr]:
    k = sums.k
    square = sums.total(lambda x, _: x * x)
    factor = k.let(k.call("rsqrt", square * (1.0 / count) + epsilon), "factor")
    return lambda x: x * factor


def _of_gap(sums: Moments, count: int, epsilon: float) -> Callable[[Expr], Expr]:
    k = sums.k
    mean = k.let(sums.total(lambda x, _: x) * (1.0 / count), "mean")
    squares = sums.total(sums.centred_square(mean))
    factor = k.let(k.call("rsqrt", squares * (1.0 / count) + epsilon), "factor")
    return lambda x: (x - mean) * factor


def _grouped(shape: Shape, groups: int) -> Shape:
    """The shape in which a group is a row of channels."""
    return (shape[0], math.prod(shape[1:-1]), groups, shape[-1] // groups)


def _write(low: Lowering, shape: Shape, axes: tuple[int, ...], normal: _Normal) -> None:
    """The kernel, of an operand that is taken for one of ``shape``, over some of its axes."""
    domain = Domain.of(shape, axes)
    plan = team_shape(low.caps, domain.items, domain.steps, lanes_first=True)
    k = low.kernel(low.node.op.lower(), plan.workgroup)
    source = low.read(k, 0)
    layout = Layout(shape, source.layout.kind, source.layout.storage)
    gamma, beta = (_optional(low, k, i) for i in (1, 2))
    out = low.write(k)
    sums = Moments(k, plan, domain, attrs.evolve(source, layout=layout))
    normalized = normal(sums, domain.count, low.attrs.epsilon)

    def store(row: Expr, slice_: Expr, x: Expr) -> None:
        value = normalized(x)
        if shape != source.shape:
            flat = k.let(row * layout.slices + slice_, "flat")
            row, slice_ = flat // out.slices, k.let(flat % out.slices, "slice")
        if gamma is not None:
            value = value * k.cast(gamma.load(0, slice_), Scalar.F32)
        if beta is not None:
            value = value + k.cast(beta.load(0, slice_), Scalar.F32)
        out.store(row, slice_, value)

    with k.if_(sums.at.valid):
        sums.steps.each(store)
    low.dispatch_groups(k, plan.groups)


def _optional(low: Lowering, k: Builder, index: int) -> ReadView | None:
    return None if low.node.optional_input(index) is None else low.read(k, index)


def _rows(normal: _Normal) -> Callable[[Lowering], None]:
    def build(low: Lowering) -> None:
        shape = low.node.input(0).shape
        _write(low, shape, (len(shape) - 1,), normal)

    return build


def _build_groups(low: Lowering) -> None:
    _write(low, _grouped(low.node.input(0).shape, low.attrs.groups), _GROUP_AXES, _of_gap)


_floats = takes(FLOATS)


def _accepts_groups(node: Node, site: Site) -> str | None:
    shape = _grouped(node.input(0).shape, node.attrs.groups)
    if shape[-1] % 4:
        return f"{GROUP}: groups of {shape[-1]} channels; its kernel takes multiples of 4"
    domain = Domain.of(shape, _GROUP_AXES)
    plan = team_shape(site.caps, domain.items, domain.steps, lanes_first=True, cut=domain.slices)
    if plan.parts > 1:
        return (
            f"{GROUP}: {domain.count} numbers in a group, which several workgroups had better share"
        )
    return _floats(node, site)


def _row_change(node: Node) -> RowChange | None:
    if node.optional_input(2) is not None:
        return None
    return RowChange(node.input(0).shape[-1], node.attrs.epsilon, node.optional_input(1))


RULES = (
    KernelRule(RMS, "team", _rows(_of_square), _floats, reads_once=True, row_change=_row_change),
    KernelRule(LAYER, "team", _rows(_of_gap), _floats, reads_once=True),
    KernelRule(GROUP, "team", _build_groups, _accepts_groups),
)
