"""Landmarks2TransformMatrix, by one invocation, and TransformLandmarks."""

from __future__ import annotations

import math

import numpy as np

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.landmarks import MATRIX, TRANSFORM, Crop, RelativeCrop, dimensions_of

_FAR = 100000.0
_Pair = tuple[Expr, Expr]


def _build_matrix(low: Lowering) -> None:
    attributes: Crop | RelativeCrop = low.attrs
    k = low.kernel("crop_matrix", (1, 1, 1))
    points, out = low.read(k, 0), low.write(k)
    (lx, ly), (rx, ry) = (_point(k, points, k.i32(i)) for i in (attributes.left, attributes.right))
    dx, dy = k.let(rx - lx, "dx"), k.let(ry - ly, "dy")
    if isinstance(attributes, Crop):
        turn = k.let(k.f32(attributes.rotation) - k.call("atan2", dy, dx), "turn")
    else:
        # The arc tangent of a quotient is in the right half with any signs.
        left = k.select(dx < 0.0, k.f32(-1.0), 1.0)
        turn = -k.call("atan2", dy * left, dx * left)
        none = dx.eq(0.0) & dy.eq(0.0)  # that quotient is NaN
        turn = k.let(k.select(none, k.f32(math.nan), turn), "turn")
    cos, sin = k.let(k.call("cos", turn), "cos"), k.let(k.call("sin", turn), "sin")
    subset = np.array(attributes.subset, np.int32)
    indices = low.weights(k, subset, "subset", width=1, scalar=Scalar.I32)
    x, y = _turned(k, _point(k, points, k.load(indices, 0)), cos, sin)
    ends = [
        k.var(value, name)
        for value, name in zip((x, y, x, y), ("x0", "y0", "x1", "y1"), strict=True)
    ]
    with k.loop(1, len(subset), name="i") as i:
        x, y = _turned(k, _point(k, points, k.load(indices, i)), cos, sin)
        for end, value, pick in zip(ends, (x, y, x, y), (k.min, k.min, k.max, k.max), strict=True):
            k.set(end, pick(end, value))
    if isinstance(attributes, RelativeCrop):
        for end, pick, far in zip(
            ends, (k.min, k.min, k.max, k.max), (_FAR,) * 2 + (-_FAR,) * 2, strict=True
        ):
            k.set(end, pick(end, far))
    x0, y0, x1, y1 = ends
    middle = (k.let((x0 + x1) * 0.5, "mx"), k.let((y0 + y1) * 0.5, "my"))
    center = _turned(k, middle, cos, -sin)
    span = (k.let(x1 - x0, "width"), k.let(y1 - y0, "height"))
    back = ((cos, sin), (-sin, cos))
    if isinstance(attributes, RelativeCrop):
        rows = _relative(k, attributes, back, center, span)
    else:
        rows = _absolute(k, attributes, back, center, span)
    zero, one = k.f32(0.0), k.f32(1.0)
    for at, (a, b, shift) in enumerate(rows):
        out.store(k.i32(at), 0, k.vec([a, b, zero, shift]))
    out.store(k.i32(2), 0, k.vec([zero, zero, one, zero]))
    out.store(k.i32(3), 0, k.vec([zero, zero, zero, one]))
    low.dispatch_groups(k, (1, 1, 1))


def _point(k: Builder, points: ReadView, index: Expr) -> _Pair:
    """The x and y of a landmark."""
    is_flat = points.layout.outer == 1 and points.channels > 3
    row, first = (k.i32(0), index * 3) if is_flat else (index, k.i32(0))
    pair = (points.load_lane(row, first), points.load_lane(row, first + 1))
    x, y = (k.let(k.cast(value, Scalar.F32), "at") for value in pair)
    return x, y


def _turned(k: Builder, point: _Pair, cos: Expr, sin: Expr) -> _Pair:
    x, y = point
    return k.let(x * cos - y * sin, "x"), k.let(x * sin + y * cos, "y")


def _absolute(
    k: Builder, crop: Crop, back: tuple[_Pair, _Pair], center: _Pair, span: _Pair
) -> list[tuple[Expr, Expr, Expr]]:
    height, width = crop.size
    steps = [
        k.let(s * (scale / n), "step")
        for s, scale, n in zip(span, crop.scale, (width, height), strict=True)
    ]
    rows = []
    for (cx, cy), middle in zip(back, center, strict=True):
        a, b = k.let(cx * steps[0], "a"), k.let(cy * steps[1], "b")
        rows.append((a, b, middle - a * (width / 2) - b * (height / 2)))
    return rows


def _relative(
    k: Builder, crop: RelativeCrop, back: tuple[_Pair, _Pair], center: _Pair, span: _Pair
) -> list[tuple[Expr, Expr, Expr]]:
    height, width = crop.size
    steps = [k.let(s * (crop.multiplier / crop.most), "step") for s in span]
    rows = []
    for (cx, cy), middle, size in zip(back, center, crop.image[::-1], strict=True):
        a, b = k.let(cx * steps[0], "a"), k.let(cy * steps[1], "b")
        half = (size - 1) / 2
        shift = (middle * (2 / crop.most) - a - b) * half
        rows.append((a * (half * 2 / (width - 1)), b * (half * 2 / (height - 1)), shift))
    return rows


def _build_transform(low: Lowering) -> None:
    shape = low.node.input(0).shape
    size = dimensions_of(low.attrs, shape)
    k = low.kernel("transform_landmarks")
    points, matrix, out = low.read(k, 0), low.read(k, 1), low.write(k)
    with each_vector(low, k, out) as (row, slice_):
        rows = [k.let(k.cast(matrix.load(i, 0), Scalar.F32), "row") for i in range(2)]
        lanes = []
        for lane in range(4):
            channel = k.let(k.min(slice_ * 4 + lane, out.channels - 1), "channel")
            which = k.let(channel % size, "which")
            first = k.let(channel - which, "first")
            x, y = (
                k.let(k.cast(points.load_lane(row, first + i), Scalar.F32), "at") for i in range(2)
            )
            moved = [k.fma(x, r.lane(0), y * r.lane(1)) + r.lane(3) * low.attrs.scale for r in rows]
            own = k.cast(points.load_lane(row, channel), Scalar.F32)
            lanes.append(k.select(which.eq(0), moved[0], k.select(which.eq(1), moved[1], own)))
        out.store(row, slice_, k.vec(lanes))


RULES = (
    KernelRule(MATRIX, "one invocation", _build_matrix, takes(FLOATS), fuses=False),
    KernelRule(TRANSFORM, "direct", _build_transform, takes(FLOATS)),
)
