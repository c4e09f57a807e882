"""CONCATENATION and PACK.

A kernel binds as many operands as the device allows. More are done in several dispatches, each of
which writes its own stretch of the result: rows along the axis, or slices of four channels where
the axis is the channels. So every element is written once, whichever dispatch does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.moves import channel_of, movable, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Const, Expr
from tflgpu.language.types import Type
from tflgpu.lowering.grid import launch, spread
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.ops.axes import elements, normal_axis
from tflgpu.ops.base import Activation
from tflgpu.ops.concat import ConcatAttrs, PackAttrs
from tflgpu.values import frozen

#: Four channels can come from four operands, and the result needs a binding too.
_FEWEST_BINDINGS = 5


@frozen
class _Part:
    """Operand ``operand`` covers [start, stop) of the axis."""

    operand: int
    start: int
    stop: int


@frozen
class _Stretch:
    """What one dispatch writes: [start, stop) of the axis, counted in slices where the axis is
    the channels, and the parts that this needs."""

    start: int
    stop: int
    parts: tuple[_Part, ...]


@frozen
class _Join:
    """How the op at hand reads an operand.

    Attributes:
        axis: Of the result.
        parts: In order, without gaps.
        row: (view, index in the result up to the channels, with the axis counted from the
            part's start, slice) -> four channels. For an axis that is not the channels.
        lane: (view, position in the result, channel counted from the part's start) -> one
            channel. For an axis that is the channels.
        keeps_channels: Whether channels of an operand stay neighbours in the result.
        activation: Applied to the result.
    """

    axis: int
    parts: tuple[_Part, ...]
    row: Callable[[ReadView, Sequence[Expr], Expr], Expr]
    lane: Callable[[ReadView, Expr, Expr], Expr]
    keeps_channels: bool
    activation: Activation = Activation.NONE


def _stretches(parts: Sequence[_Part], unit: int, limit: int) -> Iterator[_Stretch]:
    """Cut the axis so that no stretch needs more than ``limit`` parts; ``unit`` positions of the
    axis are written together."""
    start, end = 0, -(-parts[-1].stop // unit)
    while start < end:
        left = [p for p in parts if p.stop > start * unit]
        stop = end if len(left) <= limit else left[limit].start // unit
        yield _Stretch(start, stop, tuple(p for p in left if p.start < stop * unit))
        start = stop


def _choose(
    k: Builder, at: Expr, parts: Sequence[_Part], kind: Type, load: Callable[[int], Expr]
) -> Expr:
    """The value that ``load`` gives for the part in which position ``at`` lies."""
    if isinstance(at, Const):
        return load(next(i for i, p in enumerate(parts) if p.start <= at.value < p.stop))
    if len(parts) == 1:
        return load(0)
    value = k.var(k.const(0, kind), "value")
    for i, part in enumerate(parts):
        after, before = at >= part.start, at < part.stop
        first, last = i == 0, i == len(parts) - 1
        with k.if_(before if first else after if last else after & before):
            k.set(value, load(i))
    return value


def _write(low: Lowering, join: _Join) -> None:
    on_channels = join.axis == len(low.node.outputs[0].shape) - 1
    limit = low.caps.max_bindings - 1
    if low.place is not None:
        limit = len(join.parts)  # operands may be computed, too
    for stretch in _stretches(join.parts, 4 if on_channels else 1, limit):
        if on_channels:
            _write_channels(low, join, stretch)
        else:
            _write_rows(low, join, stretch)


def _write_rows(low: Lowering, join: _Join, stretch: _Stretch) -> None:
    shape, axis, parts = low.node.outputs[0].shape, join.axis, stretch.parts
    k = low.kernel(low.node.op.lower())
    views = [low.read(k, p.operand) for p in parts]
    out = low.write(k)
    dims = [*shape[:-1], out.slices]
    dims[axis] = stretch.stop - stretch.start
    count = elements(dims)
    if low.place is None:
        *index, slice_ = decompose(k, spread(low, k, count), dims)
    else:
        slice_, index = low.place[1], decompose(k, low.place[0], shape[:-1])
    index[axis] = row = k.let(index[axis] + stretch.start, "row")

    def load(i: int) -> Expr:
        own = [row - parts[i].start if d == axis else x for d, x in enumerate(index)]
        return join.row(views[i], own, slice_)

    value = _choose(k, row, parts, views[0].vector_type, load)
    outer = k.let(k.i32(0) + position(index, shape[:-1]), "outer")
    out.store(outer, slice_, activate(k, join.activation, value))
    launch(low, k, count)


def _write_channels(low: Lowering, join: _Join, stretch: _Stretch) -> None:
    parts, width = stretch.parts, stretch.stop - stretch.start
    k = low.kernel(low.node.op.lower())
    views = [low.read(k, p.operand) for p in parts]
    out = low.write(k)
    count = out.layout.outer * width
    if low.place is None:
        i = spread(low, k, count)
        outer = k.let(i // width, "outer")
        slice_ = k.let(i % width + stretch.start, "slice")
    else:
        outer, slice_ = low.place
    kind = views[0].vector_type
    if join.keeps_channels and all(p.start % 4 == 0 for p in parts):
        value = _choose(
            k, slice_ * 4, parts, kind, lambda i: views[i].load(outer, slice_ - parts[i].start // 4)
        )
    else:

        def chosen(channel: Expr) -> Expr:
            def load(i: int) -> Expr:
                return join.lane(views[i], outer, channel - parts[i].start)

            return _choose(k, channel, parts, kind.with_width(1), load)

        low.took_channel = low.channel is not None
        if low.channel is not None:
            value = k.splat(chosen(low.channel), 4)
        else:
            lanes = [min(lane, out.channels - 1) for lane in range(4)]
            value = k.vec([chosen(channel_of(k, slice_, i, out.channels)) for i in lanes])
    out.store(outer, slice_, activate(k, join.activation, value))
    launch(low, k, count)


def _concat(low: Lowering) -> None:
    attributes: ConcatAttrs = low.attrs
    axis = normal_axis("CONCATENATION", attributes.axis, len(low.node.outputs[0].shape))
    parts: list[_Part] = []
    for i in range(len(low.node.inputs)):
        start = parts[-1].stop if parts else 0
        parts.append(_Part(i, start, start + low.node.input(i).shape[axis]))

    def row(view: ReadView, index: Sequence[Expr], slice_: Expr) -> Expr:
        return view.load(position(index, view.shape[:-1]), slice_)

    def lane(view: ReadView, outer: Expr, channel: Expr) -> Expr:
        return view.load_lane(outer, channel)

    activation = attributes.activation
    _write(low, _Join(axis, tuple(parts), row, lane, keeps_channels=True, activation=activation))


def _pack(low: Lowering) -> None:
    attributes: PackAttrs = low.attrs
    axis = normal_axis("PACK", attributes.axis, len(low.node.outputs[0].shape))
    parts = tuple(_Part(i, i, i + 1) for i in range(len(low.node.inputs)))

    def row(view: ReadView, index: Sequence[Expr], slice_: Expr) -> Expr:
        own = [x for d, x in enumerate(index) if d != axis]
        return view.load(position(own, view.shape[:-1]), slice_)

    def lane(view: ReadView, outer: Expr, channel: Expr) -> Expr:
        return view.load_flat(outer)

    _write(low, _Join(axis, parts, row, lane, keeps_channels=False))


def _accepts(node: Node, site: Site) -> str | None:
    if site.caps.max_bindings < _FEWEST_BINDINGS:
        return (
            f"{node.op} needs {_FEWEST_BINDINGS} buffers in a kernel, the device binds "
            f"{site.caps.max_bindings}"
        )
    return movable(node)


RULES = (
    KernelRule("CONCATENATION", "join", _concat, _accepts, pointwise=True),
    KernelRule("PACK", "join", _pack, _accepts, pointwise=True),
)
