"""Precisions: the types in which float tensors are stored and computed.

A module of its own, since options name it: a start from a saved model imports nothing else of how
kernels are made.
"""

from __future__ import annotations

import enum

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar

#: The least number that rounds to an infinity in f16, half a step beyond the largest.
_INFINITE_F16 = 65520.0
#: The least of f16's normal numbers.
_NORMAL_F16 = 2.0**-14


def _fits_f16(data: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool((data.astype(np.float16) == data).all())


def spoiled_by_f16(numbers: Array) -> Array:
    """Which numbers f16 does not hold to its 11 bits: they become an infinity, or are among its
    subnormals, which have fewer bits. Zeros, and what is not finite, are no worse than before."""
    sizes = np.abs(numbers)
    found: Array = np.isfinite(sizes) & (
        (sizes >= _INFINITE_F16) | ((sizes > 0) & (sizes < _NORMAL_F16))
    )
    return found


def _suits_f16(weights: Array) -> bool:
    """Whether the largest finite one is held well. Beside it smaller ones say little."""
    largest = np.max(np.abs(weights), where=np.isfinite(weights), initial=0.0, keepdims=True)
    return not spoiled_by_f16(largest).any()


class Precision(enum.Enum):
    """Storage and arithmetic of float tensors on a device.

    F32_F16 computes in f32 and stores f16 where that buys something: halving a tensor saves
    memory traffic only if it does not stay in the device's cache between two kernels, while
    rounding it costs accuracy in any case. Weights are read by many workgroups each, so they
    are halved from a smaller size on. F16 stores and computes everything in f16 (sums of many
    products still in f32).

    Weights that f16 holds exactly (files with f16 weights) may be stored so in any precision.
    """

    F32 = "f32"
    F16 = "f16"
    F32_F16 = "f32_f16"

    def storage(self, elements: int, caps: DeviceCaps) -> Scalar:
        """The type in which a float tensor of that many elements is stored."""
        if self is Precision.F16:
            return Scalar.F16
        if self is Precision.F32_F16 and elements * 4 > caps.cache_bytes:
            return Scalar.F16
        return Scalar.F32

    def weight_storage(self, weights: Array, caps: DeviceCaps) -> Scalar:
        """The type in which a buffer of weights is stored."""
        if self is Precision.F16:
            return Scalar.F16 if _suits_f16(weights) else Scalar.F32
        from tflgpu.lowering.tuning import tuning_of  # who only names a precision needs no figures

        nbytes, tuning = weights.size * 4, tuning_of(caps)
        if self is Precision.F32_F16 and nbytes > min(caps.cache_bytes, tuning.rounded_weights):
            return Scalar.F16 if _suits_f16(weights) else Scalar.F32
        is_worth_asking = caps.is_gpu and caps.f16_storage and nbytes > tuning.tested_weights
        if is_worth_asking and _fits_f16(weights):
            return Scalar.F16
        return Scalar.F32

    @property
    def compute(self) -> Scalar:
        """The type of elementwise arithmetic."""
        return Scalar.F16 if self is Precision.F16 else Scalar.F32
