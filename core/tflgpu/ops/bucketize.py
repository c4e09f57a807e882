"""BUCKETIZE (TFLite version 1): between which boundaries each number lies.

The result is how many boundaries are not above the number, as i32; a NaN lies above all of them, as
in TFLite's kernel (bucketize.cc), which searches for the first boundary above it. Boundaries are
f32 numbers, and the number is compared with them as such.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    OpDef,
    Sample,
)
from tflgpu.ops.elementwise import infer_unary
from tflgpu.values import frozen

_NAME = "BUCKETIZE"
_NUMBERS = frozenset({DType.F32, DType.F64, DType.I32, DType.I64})


@frozen
class Bucketize:
    """Rising numbers."""

    boundaries: tuple[float, ...]


def _parse(fields: Fields) -> Bucketize:
    values = fields.get("boundaries")
    found = np.asarray(() if values is None else values, np.float32)
    if np.isnan(found).any() or (np.diff(found) < 0).any():
        raise ModelError(f"{_NAME}: the boundaries do not rise")
    return Bucketize(tuple(found.tolist()))


def _reference(attributes: Bucketize, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    # C++ compares an i32 or i64 with a float as floats, and a double with it as doubles.
    numbers = x if x.dtype.kind == "f" else x.astype(np.float32)
    return [
        np.searchsorted(np.array(attributes.boundaries, numbers.dtype), numbers, "right").astype(
            np.int32
        )
    ]


def _samples() -> list[Sample]:
    def sample(
        id: str, shape: tuple[int, ...], boundaries: Sequence[float], dtype: DType = DType.F32
    ) -> Sample:
        return Sample(id, {"boundaries": boundaries}, (Arg(shape, dtype, -9, 9),))

    return [
        sample("few", (3, 7), [-3.0, 0.0, 4.5]),
        sample("aligned", (2, 3, 8), [-7.5, -3.0, -1.0, 0.0, 0.25, 5.0, 8.0]),
        sample("one", (13,), [1.0]),
        sample("many", (5, 11), [0.5 * i - 8 for i in range(37)]),
        sample("on_them", (3, 5), [-4.0, -2.0, 0.0, 2.0, 4.0], DType.I32),
        sample("equal_ones", (3, 5), [-1.0, -1.0, 2.0], DType.I32),
        sample("i64", (3, 5), [-4.0, 0.0, 2.5], DType.I64),
    ]


OPS = (
    OpDef(
        _NAME,
        _parse,
        infer_unary(_NAME, _NUMBERS, DType.I32),
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        elementwise=True,
        file=FileForm(result_type=DType.I32),
    ),
)
