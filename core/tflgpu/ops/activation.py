"""RELU family: clamps of one operand.

RELU: TFLite versions 1-3; RELU6: 1-3; RELU_N1_TO_1: 1. Only float tensors are computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Arg, NoAttrs, OpDef, Operand, Sample, no_attrs


def infer_same(op: str) -> Callable[[NoAttrs, Sequence[Operand | None]], list[TensorSpec]]:
    """Shape inference of an op whose one result is like its one operand."""

    def infer(attributes: NoAttrs, operands: Sequence[Operand | None]) -> list[TensorSpec]:
        if len(operands) != 1 or operands[0] is None:
            raise ModelError(f"{op} takes one operand, got {len(operands)}")
        return [operands[0].spec]

    return infer


def _clamp(low: float, high: float) -> Callable[[NoAttrs, Sequence[Array | None]], list[Array]]:
    def reference(attributes: NoAttrs, arrays: Sequence[Array | None]) -> list[Array]:
        (x,) = arrays
        assert x is not None
        return [np.clip(x, x.dtype.type(low), x.dtype.type(high))]

    return reference


def _samples() -> Sequence[Sample]:
    return [
        Sample("rank4", {}, (Arg((1, 5, 7, 3), low=-8, high=8),)),
        Sample("rank2", {}, (Arg((3, 13), low=-8, high=8),)),
        Sample("rank1", {}, (Arg((5,), low=-8, high=8),)),
    ]


def _clamp_op(name: str, low: float, high: float, version: int) -> OpDef:
    return OpDef(
        name, no_attrs, infer_same(name), _clamp(low, high), _samples,
        max_version=version, elementwise=True,
    )  # fmt: skip


OPS = (
    _clamp_op("RELU", 0.0, np.inf, 3),
    _clamp_op("RELU6", 0.0, 6.0, 3),
    _clamp_op("RELU_N1_TO_1", -1.0, 1.0, 1),
)
