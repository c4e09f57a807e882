"""Precisions: the types in which float tensors are stored and computed.

A module of its own, since options name it: a start from a saved model imports nothing else of how
kernels are made.
"""

from __future__ import annotations

import enum

from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar


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

    @property
    def compute(self) -> Scalar:
        """The type of elementwise arithmetic."""
        return Scalar.F16 if self is Precision.F16 else Scalar.F32
