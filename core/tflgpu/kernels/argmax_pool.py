"""MaxPoolingWithArgmax2D and MaxUnpooling2D."""

from __future__ import annotations

import math

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.moves import accepts_moves, movable, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import F32, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import decompose
from tflgpu.ops.argmax_pool import PLACE_BIAS, ArgmaxPoolAttrs, before_first, pooled_side

# Windows of more taps are walked by loops in the kernel.
_UNROLLED = 49


def _pool(low: Lowering) -> None:
    attributes: ArgmaxPoolAttrs = low.attrs
    k = low.kernel("max_pool_argmax")
    src = low.read(k, 0)
    out, places = low.write(k, 0), low.write(k, 1)
    with each_vector(low, k, out) as (outer, slice_):
        n, y, x = decompose(k, outer, low.node.outputs[0].shape[:-1])
        sides = src.shape[1:3]
        origins = [
            k.let(at * step - pooled_side(attributes, axis, size)[1], "origin")
            for axis, (at, step, size) in enumerate(
                zip((y, x), attributes.strides, sides, strict=True)
            )
        ]
        best = k.var(k.const(-math.inf, src.vector_type), "best")
        place = k.var(k.const(0.0, F32.with_width(4)), "place")

        def visit(dy: Operand, dx: Operand, here: Expr) -> None:
            row, column = k.let(origins[0] + dy, "row"), k.let(origins[1] + dx, "column")
            with k.if_((row >= 0) & (row < sides[0]) & (column >= 0) & (column < sides[1])):
                at = position([n, row, column], src.shape[:-1])
                value = k.let(src.load(at, slice_), "value")
                first_nan = value.ne(value) & ~best.ne(best)
                better = k.let((value > best) | first_nan, "better")
                k.set(place, k.select(better, here, place))
                k.set(best, k.select(better, value, best))

        rows, columns = attributes.filter
        if rows * columns <= _UNROLLED:
            for dy in range(rows):
                for dx in range(columns):
                    visit(dy, dx, k.f32(dy * columns + dx, 4))
        else:
            with k.loop(0, rows, name="dy") as y_tap, k.loop(0, columns, name="dx") as x_tap:
                visit(y_tap, x_tap, k.splat(k.cast(y_tap * columns + x_tap, Scalar.F32), 4))
        out.store(outer, slice_, activate(k, attributes.activation, best))
        places.store(outer, slice_, place + PLACE_BIAS)


def _unpool(low: Lowering) -> None:
    attributes: ArgmaxPoolAttrs = low.attrs
    filter_y, filter_x = attributes.filter
    k = low.kernel("max_unpool")
    src, places = low.read(k, 0), low.read(k, 1)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        n, y, x = decompose(k, outer, low.node.outputs[0].shape[:-1])
        at = k.let(position([n, y // filter_y, x // filter_x], src.shape[:-1]) + k.i32(0), "at")
        here = k.let((y % filter_y) * filter_x + x % filter_x, "here")
        place = _place(k, places.load(at, slice_))
        value = src.load(at, slice_)
        zero = k.const(0, value.type)
        out.store(outer, slice_, k.select(place.eq(k.splat(here, 4)), value, zero))


def _place(k: Builder, number: Expr) -> Expr:
    """Places as whole numbers; one below 0, or a NaN, is nowhere."""
    number = k.let(number, "number")
    return k.let(k.select(number >= 0.0, k.cast(number, Scalar.I32), -1), "place")


def _unpool_apart(low: Lowering) -> None:
    """Windows that overlap, or leave gaps: each pixel looks at all windows that may put something
    there, in their order, of which the last one does."""
    attributes: ArgmaxPoolAttrs = low.attrs
    k = low.kernel("max_unpool_apart")
    src, places = low.read(k, 0), low.read(k, 1)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        n, y, x = decompose(k, outer, low.node.outputs[0].shape[:-1])
        value = k.var(k.const(0, src.vector_type), "value")
        sizes = low.node.input(0).shape[1:3]
        ways = list(zip(sizes, attributes.strides, attributes.filter, strict=True))
        ends = []
        for pixel, (size, step, window) in zip((y, x), ways, strict=True):
            before = before_first(size, step, window)
            ends.append(k.let(pixel + before, "end"))
        most = [-(-window // step) for _, step, window in ways]
        with k.loop(0, most[0], name="i") as a, k.loop(0, most[1], name="j") as b:
            taps, indices, inside = [], [], []
            for end, back, (size, step, window), all_ in zip(ends, (a, b), ways, most, strict=True):
                index = k.let(end // step - (all_ - 1 - back), "index")
                tap = k.let(end - index * step, "tap")
                taps.append(tap)
                indices.append(k.clamp(index, 0, size - 1))
                inside.append((index >= 0) & (index < size) & (tap < window))
            here = k.let(taps[0] * attributes.filter[1] + taps[1], "here")
            with k.if_(inside[0] & inside[1]):
                at = k.let(position([n, *indices], src.shape[:-1]) + k.i32(0), "at")
                is_here = _place(k, places.load(at, slice_)).eq(k.splat(here, 4))
                k.set(value, k.select(is_here, src.load(at, slice_), value))
        out.store(outer, slice_, value)


def _accepts_unpool(node: Node, site: Site) -> str | None:
    attributes: ArgmaxPoolAttrs = node.attrs
    if attributes.strides != attributes.filter:
        return f"{node.op}: the rule is for windows that lie side by side"
    return movable(node)


RULES = (
    KernelRule("MaxPoolingWithArgmax2D", "direct", _pool, accepts_moves(), fuses=False),
    KernelRule("MaxUnpooling2D", "gather", _unpool, _accepts_unpool, rank=1),
    KernelRule("MaxUnpooling2D", "apart", _unpool_apart, accepts_moves()),
)
