"""Landmarks2TransformMatrix and TransformLandmarks: MediaPipe's custom ops, versions 1 and 2.

Landmarks2TransformMatrix: landmarks (x, y, z) -> the matrix [1, 4, 4] that takes places of a crop
to places of the image. The crop holds the landmarks of a subset, turned so that the line from one
landmark to another has a given angle.

    version 2: shift(center) * rotate * scale(size of the subset / size of the crop) * shift(-crop /
    2) version 1: the same between places from -1 to 1, of landmarks from 0 to ``landmarks_range``

TransformLandmarks: landmarks, and such a matrix -> the landmarks at their places in the image; what
is beyond x and y stays. Which version an operator is follows from the names of its options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.ops.flexible import read_map, write_map
from tflgpu.values import frozen

MATRIX, TRANSFORM = "Landmarks2TransformMatrix", "TransformLandmarks"
_FAR = 100000.0  # where version 1 begins to look for the ends of a subset


@frozen
class Crop:
    """Options of version 2.

    Attributes:
        subset: Landmarks that the crop is to hold.
        left, right: Landmarks whose line is to have the angle ``rotation``, in radians.
        size: Height and width of the crop.
        scale: By which the subset's width and height are multiplied.
    """

    subset: tuple[int, ...]
    left: int
    right: int
    size: tuple[int, int]
    rotation: float
    scale: tuple[float, float]


@frozen
class RelativeCrop:
    """Options of version 1; sizes are (height, width), and ``most`` is landmarks_range."""

    subset: tuple[int, ...]
    left: int
    right: int
    size: tuple[int, int]
    image: tuple[int, int]
    most: float
    multiplier: float


@frozen
class Landmarks:
    """How landmarks lie: numbers of each, 0 where the tensor's last dimension says it, and by how
    much the matrix's shifts are multiplied."""

    dimensions: int
    scale: float


def _parse_matrix(fields: Fields) -> Crop | RelativeCrop:
    options = read_map(fields)
    found: Crop | RelativeCrop
    positive: tuple[float, ...]
    ends = [options.integer(f"{side}_rotation_idx", minimum=0) for side in ("left", "right")]
    if options.get("subset_idxs") is not None:
        size = (options.integer("output_height"), options.integer("output_width"))
        scale = (options.number("scale_x"), options.number("scale_y"))
        rotation = options.number("target_rotation_radians")
        found = Crop(options.integers("subset_idxs"), ends[0], ends[1], size, rotation, scale)
        positive = (*size, *scale)
    else:
        if options.integer("dimensions") != 3:
            raise ModelError(f"{MATRIX}: landmarks of {options.integer('dimensions')} numbers")
        image, size = (_pair(options, name) for name in ("input_hw", "output_hw"))
        found = RelativeCrop(
            options.integers("subset"),
            ends[0],
            ends[1],
            size,
            image,
            options.number("landmarks_range"),
            options.number("bbox_size_multiplier"),
        )
        positive = (*size, *image, found.most, abs(found.multiplier))
    if not found.subset or min(found.subset) < 0:
        raise ModelError(f"{MATRIX}: a subset of landmarks {list(found.subset)}")
    if not all(0 < number < math.inf for number in positive):
        raise ModelError(f"{MATRIX}: sizes and scales {list(positive)} must be positive")
    if isinstance(found, RelativeCrop) and min(found.size) < 2:
        raise ModelError(f"{MATRIX}: a crop of {found.size} has no places from -1 to 1")
    return found


def _pair(options: Fields, name: str) -> tuple[int, int]:
    found = options.integers(name)
    if len(found) != 2:
        raise ModelError(f"{MATRIX}: option {name} is {list(found)}, not a height and a width")
    return found[0], found[1]


def _infer_matrix(attributes: Crop | RelativeCrop, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(MATRIX, operands, 1)
    rank = 3 if isinstance(attributes, Crop) else 4
    count = math.prod(x.shape)
    fits = x.rank == rank and x.shape[0] == 1
    fits = fits and (x.shape[2] == 3 if rank == 3 else count == x.shape[3] and count % 3 == 0)
    if x.dtype is not DType.F32 or not fits:
        raise ModelError(f"{MATRIX}: landmarks {x.spec}, 3 numbers of f32 each needed")
    last = max(*attributes.subset, attributes.left, attributes.right)
    if last >= count // 3:
        raise ModelError(f"{MATRIX}: landmark {last} of {count // 3}")
    return [TensorSpec((1, 4, 4), DType.F32)]


def _reference_matrix(attributes: Crop | RelativeCrop, arrays: Arrays) -> list[Array]:
    points = present(arrays[0]).reshape(-1, 3)[:, :2]
    dx, dy = points[attributes.right] - points[attributes.left]
    subset = points[list(attributes.subset)]
    if isinstance(attributes, Crop):
        turn = np.float32(attributes.rotation) - np.arctan2(dy, dx)
    else:
        turn = -np.arctan(dy / dx)
    rotated = subset @ _rotation(turn).T
    low, high = rotated.min(axis=0), rotated.max(axis=0)
    if isinstance(attributes, RelativeCrop):
        low, high = np.minimum(low, np.float32(_FAR)), np.maximum(high, np.float32(-_FAR))
    back = _rotation(-turn)
    center, span = back @ ((low + high) / 2), high - low
    size = np.array(attributes.size[::-1], np.float32)
    if isinstance(attributes, Crop):
        linear = back * (span * np.array(attributes.scale, np.float32) / size)
        shift = center - linear @ (size / 2)
    else:
        image = (np.array(attributes.image[::-1], np.float32) - 1) / 2
        most = np.float32(attributes.most)
        relative = back * (span * np.float32(attributes.multiplier) / most)
        linear = image[:, None] * relative * (2 / (size - 1))
        shift = image * (center / most * 2 - 1 - relative.sum(axis=1) + 1)
    found = np.eye(4, dtype=np.float32)
    found[:2, :2], found[:2, 3] = linear, shift
    return [found[None]]


def _rotation(angle: np.floating) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]], np.float32)


def _parse_transform(fields: Fields) -> Landmarks:
    if not fields.custom_options:
        return Landmarks(0, 1.0)
    options = read_map(fields)
    if options.get("dimensions") is None:
        return Landmarks(0, 1.0)
    found = Landmarks(options.integer("dimensions"), options.number("scale", 1.0))
    if found.dimensions not in (2, 3) or found.scale == 0 or not math.isfinite(found.scale):
        raise ModelError(f"{TRANSFORM}: {found.dimensions} dimensions and a scale of {found.scale}")
    return found


def dimensions_of(attributes: Landmarks, shape: Sequence[int]) -> int:
    """Numbers of a landmark."""
    return attributes.dimensions or shape[-1]


def _infer_transform(attributes: Landmarks, operands: Operands) -> list[TensorSpec]:
    x, matrix = take_operands(TRANSFORM, operands, 2)
    rank = 4 if attributes.dimensions else 3
    if x.dtype is not DType.F32 or matrix.dtype is not DType.F32:
        raise ModelError(f"{TRANSFORM}: operands {x.spec} and {matrix.spec} must be f32")
    size = dimensions_of(attributes, x.shape) if x.rank == rank else 0
    if size not in (2, 3) or x.shape[-1] % size or x.shape[0] != 1:
        raise ModelError(f"{TRANSFORM}: landmarks (operand 0) have shape {list(x.shape)}")
    if matrix.rank < 2 or matrix.shape[-2:] != (4, 4) or math.prod(matrix.shape) != 16:
        raise ModelError(f"{TRANSFORM}: the matrix (operand 1) has shape {list(matrix.shape)}")
    return [x.spec]


def _reference_transform(attributes: Landmarks, arrays: Arrays) -> list[Array]:
    x, matrix = present(arrays[0]), present(arrays[1]).reshape(4, 4)
    points = x.reshape(-1, dimensions_of(attributes, x.shape))
    found = np.array(points)
    shift = matrix[:2, 3] * np.float32(attributes.scale)
    for axis in range(2):
        along = points[:, 0] * matrix[axis, 0] + points[:, 1] * matrix[axis, 1]
        found[:, axis] = along + shift[axis]
    return [found.reshape(x.shape)]


def _matrix_samples() -> list[Sample]:
    second = write_map(
        {
            "subset_idxs": [0, 3, 5, 8, 2],
            "left_rotation_idx": 1,
            "right_rotation_idx": 7,
            "target_rotation_radians": 0.3,
            "output_height": 24,
            "output_width": 32,
            "scale_x": 1.5,
            "scale_y": 1.2,
        }
    )
    first = write_map(
        {
            "subset": [1, 2, 4, 6],
            "left_rotation_idx": 0,
            "right_rotation_idx": 5,
            "dimensions": 3,
            "landmarks_range": 2,
            "bbox_size_multiplier": 1.25,
            "input_hw": [20, 30],
            "output_hw": [10, 14],
        }
    )
    return [
        Sample("version2", {}, (Arg((1, 9, 3)),), 1, 16, second),
        Sample("version1", {}, (Arg((1, 1, 1, 21)),), 1, 16, first),
    ]


def _transform_samples() -> list[Sample]:
    first = write_map({"dimensions": 2, "scale": 3.0})
    third = write_map({"dimensions": 3, "scale": 0.5})
    return [
        Sample("version2", {}, (Arg((1, 7, 3)), Arg((1, 4, 4))), 1, 3, b""),
        Sample("version1_flat", {}, (Arg((1, 1, 1, 10)), Arg((1, 4, 4))), 1, 3, first),
        Sample("version1_three", {}, (Arg((1, 1, 1, 9)), Arg((1, 1, 4, 4))), 1, 3, third),
    ]


OPS = (
    OpDef(
        MATRIX, _parse_matrix, _infer_matrix, _reference_matrix, _matrix_samples,
        accuracy=Accuracy.ACCUMULATE, file=FileForm(max_version=2), is_custom=True
    ),
    OpDef(
        TRANSFORM, _parse_transform, _infer_transform, _reference_transform, _transform_samples,
        accuracy=Accuracy.ACCUMULATE, file=FileForm(max_version=2), is_custom=True
    ),
)  # fmt: skip
