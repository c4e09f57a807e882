"""NARROW: 64-bit indices as 32-bit ones. No file has it; `compiler.narrow` puts it before a node.

What 32 bits do not hold becomes the nearest number that they do: it is outside of every tensor too,
so that what an index does there is what the one of 64 bits does, and never another element.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    OnDevice,
    OpDef,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import infer_unary
from tflgpu.ops.facets import always

OP = "NARROW"


def narrowed(array: Array) -> Array:
    """Whole numbers in 32 bits, the nearest one where that is another."""
    limits = np.iinfo(np.int32)
    return np.clip(array, limits.min, limits.max).astype(np.int32)


def _samples() -> list[Sample]:
    large = Arg.of([2**31, -(2**31) - 1, 2**62, -(2**62), 5, 2**31 - 1], DType.I64)
    return [Sample("inside", {}, (Arg((3, 5), DType.I64, -9, 9),)), Sample("outside", {}, (large,))]


OPS = (
    OpDef(
        OP,
        no_attrs,
        infer_unary(OP, frozenset({DType.I64}), DType.I32),
        lambda a, arrays: [narrowed(present(arrays[0]))],
        _samples,
        accuracy=Accuracy.EXACT,
        elementwise=True,
        quantized=Quantized(stored=True),
        device=OnDevice(limits=always("indices of 64 bits are made 32-bit ones on the CPU")),
    ),
)
