"""Images read between their pixels: TransformTensorBilinear, TransformTensor, Resampler."""

from __future__ import annotations

import math

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.ops.sampling import BILINEAR, RESAMPLER, TENSOR


def _build_transform(low: Lowering) -> None:
    k = low.kernel("transform_tensor")
    image, matrix, out = low.read(k, 0), low.read(k, 1), low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        _, row, column = decompose(k, outer, out.shape[:-1])
        y, x = (k.let(k.cast(a, Scalar.F32), "at") for a in (row, column))
        places = []
        for i in range(2):
            line = k.let(k.cast(matrix.load(i, 0), Scalar.F32), "line")
            shift = line.lane(3)
            if low.attrs.corners:
                shift = shift + (line.lane(0) * 0.5 + line.lane(1) * 0.5 - 0.5)
            places.append(k.let(line.lane(0) * x + line.lane(1) * y + shift, "place"))
        px, py = places
        _, height, width, _ = image.shape
        within = (px >= 0.0) & (px <= float(width - 1)) & (py >= 0.0) & (py <= float(height - 1))
        value = _sampled(k, image, k.i32(0), slice_, px, py)
        value = k.select(within, value, k.const(0, value.type))
        none = k.is_nan(px) | k.is_nan(py)
        out.store(outer, slice_, k.select(none, k.f32(math.nan, 4), value))


def _build_resampler(low: Lowering) -> None:
    k = low.kernel("resampler")
    image, places, out = low.read(k, 0), low.read(k, 1), low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        batch = decompose(k, outer, out.shape[:-1])[0]
        px, py = (k.let(k.cast(places.load_lane(outer, i), Scalar.F32), "place") for i in range(2))
        out.store(outer, slice_, _sampled(k, image, batch, slice_, px, py))


def _sampled(k: Builder, image: ReadView, batch: Expr, slice_: Expr, x: Expr, y: Expr) -> Expr:
    """Four channels at a place of an image, 0 where it is a pixel or more beyond, or NaN."""
    _, height, width, _ = image.shape
    inside = (x > -1.0) & (x < float(width)) & (y > -1.0) & (y < float(height))
    inside = k.let(inside, "inside")
    left, top = (k.let(k.call("floor", k.select(inside, a, 0.0)), "floor") for a in (x, y))
    right, low = k.let(x - left, "right"), k.let(y - top, "low")
    column, row = (k.let(k.cast(a, Scalar.I32), "pixel") for a in (left, top))

    def pixel(dy: int, dx: int) -> Expr:
        r, c = k.let(row + dy, "r"), k.let(column + dx, "c")
        there = (r >= 0) & (r < height) & (c >= 0) & (c < width)
        at = (batch * height + k.clamp(r, 0, height - 1)) * width + k.clamp(c, 0, width - 1)
        value = k.cast(image.load(k.let(at, "outer"), slice_), Scalar.F32)
        return k.select(there, value, k.f32(0.0, 4))

    upper = pixel(0, 0) * (1.0 - right) + pixel(0, 1) * right
    lower = pixel(1, 0) * (1.0 - right) + pixel(1, 1) * right
    found = upper * (1.0 - low) + lower * low
    return k.let(k.select(inside, found, k.f32(0.0, 4)), "sampled")


RULES = (
    KernelRule(BILINEAR, "direct", _build_transform, takes(FLOATS)),
    KernelRule(TENSOR, "direct", _build_transform, takes(FLOATS)),
    KernelRule(RESAMPLER, "direct", _build_resampler, takes(FLOATS)),
)
