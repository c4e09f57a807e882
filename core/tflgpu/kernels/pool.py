"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D.

A window is one invocation's work, except where there are few large ones (global pooling) and a
GPU to fill: those are shared by teams. Positions are clamped to the part of the window that lies
in the image: a maximum does not mind seeing a pixel twice, a sum leaves such pixels out.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tflgpu.kernels.activation import activate
from tflgpu.kernels.team import Teams
from tflgpu.kernels.window_places import window_corner
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import launch, spread
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.pool import StoredAverage, pool_window
from tflgpu.ops.windows import Window

_WORKGROUP = 64
# Larger windows are walked by loops in the kernel, or shared by a team where results are few.
_UNROLLED = 16


@attrs.frozen
class _Kind:
    """How a pooling op merges pixels: ``merge`` of ``of(pixel)``, then ``finish``."""

    of: Callable[[Builder, Expr], Expr]
    merge: Callable[[Builder, Expr, Expr], Expr]
    finish: Callable[[Builder, Expr, Expr], Expr]
    is_sum: bool


def _divide(k: Builder, total: Expr, count: Expr) -> Expr:
    return total / k.splat(count, 4)


_KINDS = {
    "MAX_POOL_2D": _Kind(lambda k, x: x, lambda k, a, b: k.max(a, b), lambda k, x, n: x, False),
    "AVERAGE_POOL_2D": _Kind(lambda k, x: x, lambda k, a, b: a + b, _divide, True),
    "L2_POOL_2D": _Kind(
        lambda k, x: x * x,
        lambda k, a, b: a + b,
        lambda k, total, count: k.call("sqrt", _divide(k, total, count)),
        True,
    ),
}


def _kind(low: Lowering) -> _Kind:
    stored: StoredAverage | None = low.attrs.stored
    return _KINDS[low.node.op] if stored is None else _stored(stored)


def _stored(stored: StoredAverage) -> _Kind:
    """The average of stored numbers, whole ones in f32."""

    def finish(k: Builder, total: Expr, count: Expr) -> Expr:
        taken = k.let(k.splat(count, 4), "taken")
        found = k.let(total + taken * float(stored.zero_point), "stored")
        half = k.call("floor", taken * 0.5)
        # A quotient that is whole may come out a little less, so half a step more is divided.
        size = k.let(k.call("floor", (k.call("abs", found) + half + 0.5) / taken), "size")
        average = k.select(found < 0.0, -size, size)
        clamped = k.clamp(average, float(stored.low), float(stored.high))
        return (clamped - float(stored.zero_point)) * stored.scale

    inverse = 1 / stored.scale
    return attrs.evolve(
        _KINDS["AVERAGE_POOL_2D"], of=lambda k, x: k.call("floor", x * inverse + 0.5), finish=finish
    )


class _Place:
    """One output pixel and slice: where its window begins and which part is in the image."""

    def __init__(self, k: Builder, window: Window, image: tuple[int, ...], pixel: Expr) -> None:
        self.k, self.window = k, window
        _, self.height, self.width, _ = image
        self.y0, self.x0, self.base = window_corner(k, window, image, pixel)
        self.top, self.bottom = self._clip(self.y0, window.kernel_h, self.height)
        self.left, self.right = self._clip(self.x0, window.kernel_w, self.width)

    def _clip(self, start: Expr, taps: int, size: int) -> tuple[Expr, Expr]:
        k = self.k
        return k.let(k.max(start, 0), "lo"), k.let(k.min(start + taps, size), "hi")

    def count(self) -> Expr:
        """Pixels of the window that are in the image, f32."""
        return self.k.cast((self.bottom - self.top) * (self.right - self.left), Scalar.F32)

    def read(self, src: ReadView, slice_: Expr, i: Expr, j: Expr) -> tuple[Expr, Expr]:
        """Tap (i, j), or one nearby that is in the image, in f32; and whether it is the tap."""
        k = self.k
        y, x = k.let(self.y0 + i, "iy"), k.let(self.x0 + j, "ix")
        inside = (y >= self.top) & (y < self.bottom) & (x >= self.left) & (x < self.right)
        row = k.clamp(y, self.top, self.bottom - 1)
        at = self.base + row * self.width + k.clamp(x, self.left, self.right - 1)
        return k.cast(src.load(k.let(at, "at"), slice_), Scalar.F32), inside


def _add_tap(k: Builder, kind: _Kind, total: Variable, tap: tuple[Expr, Expr]) -> None:
    value, inside = tap
    mine = kind.of(k, k.let(value, "v"))
    if kind.is_sum:
        mine = k.select(inside, mine, k.f32(0.0, 4))
    k.set(total, kind.merge(k, total, mine))


def _first(k: Builder, kind: _Kind, place: _Place, src: ReadView, slice_: Expr) -> Variable:
    """A total to start from: zero, or any pixel of the window for a maximum."""
    if kind.is_sum:
        return k.var(k.f32(0.0, 4), "total")
    return k.var(place.read(src, slice_, k.i32(0), k.i32(0))[0], "best")


def build_pool(low: Lowering) -> None:
    """The kernel that suits the window."""
    window, layout = pool_window(low.node), low.layout(low.result)
    large = window.kernel_h * window.kernel_w > _UNROLLED
    few = layout.outer * layout.slices <= tuning_of(low.caps).team_pooled_results
    if large and low.caps.is_gpu and few:
        _build_team(low, window)
    else:
        _build_alone(low, window, unroll=not large)


def _store(
    low: Lowering, k: Builder, out: WriteView, place: _Place, pixel: Expr, slice_: Expr, total: Expr
) -> None:
    value = _kind(low).finish(k, total, place.count())
    out.store(pixel, slice_, activate(k, low.attrs.activation, k.let(value, "pooled")))


def _build_alone(low: Lowering, window: Window, *, unroll: bool) -> None:
    kind = _kind(low)
    k = low.kernel(low.node.op.lower())
    src, out = low.read(k, 0), low.write(k)
    count = out.layout.outer * out.slices
    i = spread(low, k, count)
    slice_, pixel = k.let(i % out.slices, "slice"), k.let(i // out.slices, "pixel")
    place = _Place(k, window, src.shape, pixel)
    total = _first(k, kind, place, src, slice_)
    if unroll:
        for tap_y in range(window.kernel_h):
            for tap_x in range(window.kernel_w):
                _add_tap(k, kind, total, place.read(src, slice_, k.i32(tap_y), k.i32(tap_x)))
    else:
        rows, columns = window.kernel_h, window.kernel_w
        with k.loop(0, rows, name="i") as i_tap, k.loop(0, columns, name="j") as j_tap:
            _add_tap(k, kind, total, place.read(src, slice_, i_tap, j_tap))
    _store(low, k, out, place, pixel, slice_, total)
    launch(low, k, count)


def _build_team(low: Lowering, window: Window) -> None:
    kind = _kind(low)
    taps = window.kernel_h * window.kernel_w
    lanes = tuning_of(low.caps).pool_team
    columns = max(1, min(_WORKGROUP, low.caps.max_workgroup) // lanes)
    teams = Teams.of(low.caps, columns, lanes)
    k = low.kernel(f"{low.node.op.lower()}_team", teams.workgroup)
    src, out = low.read(k, 0), low.write(k)
    at = teams.member(k)
    i = k.let(k.group_id(0) * columns + at.column, "i")
    count = out.layout.outer * out.slices
    # Excess invocations repeat the last place: they must reach the barriers too.
    safe = k.let(k.min(i, count - 1), "safe")
    slice_, pixel = k.let(safe % out.slices, "slice"), k.let(safe // out.slices, "pixel")
    place = _Place(k, window, src.shape, pixel)
    total = _first(k, kind, place, src, slice_)
    with k.loop(at.lane, taps, lanes, name="tap") as tap:
        i_tap, j_tap = tap // window.kernel_w, tap % window.kernel_w
        _add_tap(k, kind, total, place.read(src, slice_, i_tap, j_tap))
    at.combine([at.shared(F32x4)], [total], lambda a, b: [kind.merge(k, a[0], b[0])])
    with k.if_(at.lane.eq(0) & (i < count)):
        _store(low, k, out, place, pixel, slice_, total)
    low.dispatch_groups(k, (-(-count // columns), 1, 1))


RULES = tuple(KernelRule(op, "windows", build_pool, takes(FLOATS)) for op in _KINDS)
