"""Custom ops that read an image between its pixels, linearly, with zeros around it.

TransformTensorBilinear (MediaPipe, version 2) and TransformTensor (version 1): an image of batch 1,
and a matrix [4, 4] -> an image of another size, each pixel of which lies at matrix * (x, y, 0, 1)
in the first. Version 2 counts from the pixels' corners, version 1 from their centers. What lies
beyond the centers of the first image's outermost pixels is 0.

Resampler (TensorFlow Addons): images, and places (x, y) in them, the first two of the last
dimension -> the images there. Up to a pixel beyond the image it fades to 0.
"""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.flexible import read_map, write_map
from tflgpu.ops.items import each_row
from tflgpu.values import frozen

BILINEAR, TENSOR, RESAMPLER = "TransformTensorBilinear", "TransformTensor", "Resampler"


@frozen
class Transform:
    """Options: height and width of the result, and whether places count from pixels' corners."""

    size: tuple[int, int]
    corners: bool


def _parse(fields: Fields) -> Transform:
    options = read_map(fields)
    if fields.op == BILINEAR:
        size = (options.integer("output_height"), options.integer("output_width"))
    else:
        given = options.integers("output_size")
        mode = options.get("mode", "bilinear")
        if mode != "bilinear":
            raise ModelError(f"{TENSOR}: mode {mode!r}; MediaPipe's kernel has 'bilinear' only")
        if len(given) != 2:
            raise ModelError(f"{TENSOR}: option output_size is {list(given)}, not two numbers")
        size = (given[0], given[1])
    if min(size) < 1:
        raise ModelError(f"{fields.op}: a result of {size[0]} x {size[1]} pixels")
    return Transform(size, fields.op == BILINEAR)


def _infer(attributes: Transform, operands: Operands) -> list[TensorSpec]:
    op = BILINEAR if attributes.corners else TENSOR
    image, matrix = take_operands(op, operands, 2)
    need_rank(op, image, "image (operand 0)", 4)
    if image.dtype is not DType.F32 or matrix.dtype is not DType.F32:
        raise ModelError(f"{op}: operands {image.spec} and {matrix.spec} must be f32")
    if image.shape[0] != 1 or 0 in image.shape:
        raise ModelError(f"{op}: the image (operand 0) has shape {list(image.shape)}")
    if matrix.rank < 2 or matrix.shape[-2:] != (4, 4) or math.prod(matrix.shape) != 16:
        raise ModelError(f"{op}: the matrix (operand 1) has shape {list(matrix.shape)}")
    return [TensorSpec((1, *attributes.size, image.shape[3]), DType.F32)]


def _infer_resampler(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    image, places = take_operands(RESAMPLER, operands, 2)
    need_rank(RESAMPLER, image, "image (operand 0)", 4)
    need_rank(RESAMPLER, places, "places (operand 1)", 4)
    if image.dtype is not DType.F32 or places.dtype is not DType.F32:
        raise ModelError(f"{RESAMPLER}: operands {image.spec} and {places.spec} must be f32")
    if image.shape[0] != places.shape[0] or places.shape[3] < 2 or 0 in image.shape:
        raise ModelError(
            f"{RESAMPLER}: places {list(places.shape)} in images {list(image.shape)}; as many of "
            "both, and two numbers a place needed"
        )
    return [TensorSpec((*places.shape[:3], image.shape[3]), DType.F32)]


def _sampled(images: Array, x: Array, y: Array) -> Array:
    """Images [n, h, w, c] at places [n, ...], each in the image of its number; 0 beyond them."""
    n, h, w, _ = images.shape
    inside = (x > -1) & (x < w) & (y > -1) & (y < h)
    x, y = (np.where(inside, a, 0) for a in (x, y))
    left, top = np.floor(x), np.floor(y)
    right, low = (x - left)[..., None], (y - top)[..., None]
    one = np.float32(1)
    which = np.arange(n).reshape(-1, *[1] * (x.ndim - 1))

    def pixel(dy: int, dx: int) -> Array:
        row, column = (top + dy).astype(np.int64), (left + dx).astype(np.int64)
        there = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        found = images[which, np.clip(row, 0, h - 1), np.clip(column, 0, w - 1)]
        return np.where(there[..., None], found, np.float32(0))

    upper = (one - right) * pixel(0, 0) + right * pixel(0, 1)
    lower = (one - right) * pixel(1, 0) + right * pixel(1, 1)
    found = (one - low) * upper + low * lower
    return np.asarray(np.where(inside[..., None], found, np.float32(0)), np.float32)


def _reference(attributes: Transform, arrays: Arrays) -> list[Array]:
    image, matrix = present(arrays[0]), present(arrays[1]).reshape(4, 4)
    shift = [matrix[i, 3] for i in range(2)]
    if attributes.corners:
        half = np.float32(0.5)
        shift = [shift[i] + (matrix[i, 0] * half + matrix[i, 1] * half - half) for i in range(2)]
    y, x = np.mgrid[0 : attributes.size[0], 0 : attributes.size[1]].astype(np.float32)
    at = [matrix[i, 0] * x + matrix[i, 1] * y + shift[i] for i in range(2)]
    beyond = (at[0] < 0) | (at[0] > image.shape[2] - 1) | (at[1] < 0) | (at[1] > image.shape[1] - 1)
    found = _sampled(image, at[0][None], at[1][None])[0]
    found[beyond] = 0
    found[np.isnan(at[0]) | np.isnan(at[1])] = np.nan  # nowhere that anyone could tell
    return [found[None]]


def _reference_resampler(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    images, places = present(arrays[0]), present(arrays[1])
    return [_sampled(images, places[..., 0], places[..., 1])]


def _samples(op: str) -> list[Sample]:
    def case(
        id: str, shape: tuple[int, ...], size: tuple[int, int], matrix: tuple[int, ...]
    ) -> Sample:
        named = {"output_height": size[0], "output_width": size[1]}
        listed = {"output_size": list(size), "mode": "bilinear"}
        options = write_map(named if op == BILINEAR else listed)
        args = (Arg(shape), Arg(matrix, low=0.1, high=0.9))
        return Sample(id, {}, args, 1, 4, options)

    return [
        case("odd", (1, 7, 5, 3), (4, 6), (1, 4, 4)),
        case("aligned", (1, 6, 9, 8), (5, 3), (1, 1, 4, 4)),
    ]


def _resampler_samples() -> list[Sample]:
    return [
        Sample("odd", {}, (Arg((2, 5, 7, 3)), Arg((2, 3, 4, 2), low=-2, high=8)), 1, 4),
        Sample("more_numbers", {}, (Arg((1, 4, 3, 8)), Arg((1, 5, 2, 3), low=-1, high=4)), 1, 4),
    ]


OPS = (
    OpDef(
        BILINEAR, _parse, _infer, _reference, lambda: _samples(BILINEAR),
        accuracy=Accuracy.ACCUMULATE, file=FileForm(max_version=2), is_custom=True
    ),
    OpDef(
        TENSOR, _parse, _infer, _reference, lambda: _samples(TENSOR),
        accuracy=Accuracy.ACCUMULATE, is_custom=True,
    ),
    OpDef(
        RESAMPLER, no_attrs, _infer_resampler, _reference_resampler, _resampler_samples,
        accuracy=Accuracy.ACCUMULATE, is_custom=True, batch=each_row(0, 1),
    ),
)  # fmt: skip
