"""ROUND_TO_BF16: a number as bf16, the upper half of an f32, stores it.

No file has this op. NumPy and most devices have no bf16, so a graph holds such tensors as f32, and
the reader (`tflgpu.tflite.build`) puts this op behind every operator that makes one. TFLite's
kernels do the same: they compute in f32 and store the nearest bf16, halves to the even one.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Arg, Arrays, NoAttrs, OpDef, Sample, no_attrs
from tflgpu.ops.elementwise import infer_unary

OP = "ROUND_TO_BF16"


def _reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    bits = np.array(x, np.float32, order="C").view(np.uint32)
    # The lowest bit that is kept decides where a half goes. What is beyond the largest number
    # becomes infinity by itself; a NaN could become one too, and is left as it is.
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(
        0xFFFF0000
    )
    kept = np.asarray(nearest, np.uint32).view(np.float32)
    return [np.where(np.isnan(x), x, kept).astype(x.dtype)]


def _samples() -> list[Sample]:
    # No numbers that f16, which a device may store them in, cannot hold.
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, -0.0, 0.125, 2047], np.float32)
    return [
        Sample("rank4", {}, (Arg((1, 5, 7, 3), low=-9, high=9),)),
        Sample("matrix", {}, (Arg((3, 13), low=-900, high=900),)),
        Sample("halves", {}, (Arg.of(halves),)),
    ]


OPS = (
    OpDef(
        OP,
        no_attrs,
        infer_unary(OP, frozenset({DType.F32})),
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        elementwise=True,
    ),
)
