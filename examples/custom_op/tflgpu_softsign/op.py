"""Softsign: x / (1 + |x|), one element at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tflgpu.sdk.ops import (
    Arg,
    Array,
    DType,
    ModelError,
    OpDef,
    Operand,
    Sample,
    TensorSpec,
    no_attrs,
)


def _infer(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    x = operands[0] if len(operands) == 1 else None
    if x is None or x.dtype is not DType.F32:
        raise ModelError("Softsign takes one operand, of type f32")
    return [x.spec]


def _reference(attributes: Any, operands: Sequence[Array | None]) -> list[Array]:
    (x,) = operands
    assert x is not None
    return [x / (np.float32(1) + np.abs(x))]


def _samples() -> list[Sample]:
    # Sizes that are no multiples of 4 show what a kernel does with the last channels.
    return [Sample(f"rank{len(s)}", {}, (Arg(s, low=-5, high=5),)) for s in ((7,), (3, 5, 7, 5))]


OPS = (OpDef("Softsign", no_attrs, _infer, _reference, _samples, elementwise=True, is_custom=True),)
