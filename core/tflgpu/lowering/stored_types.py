"""The types in which a device stores tensors inside of a part, and weights."""

from __future__ import annotations

from tflgpu.ir.graph import Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.weights import Weights


def storage_of(
    value: Value,
    precision: Precision,
    caps: DeviceCaps,
    integers: IntegerStorage = IntegerStorage.WORDS,
) -> Scalar:
    """The type in which a tensor is stored inside a partition: floats by precision, others by
    policy."""
    if value.dtype.is_float:
        return precision.storage(value.elements, caps)
    return integers.inside(value.dtype, caps)


def weight_storage(weights: Weights, precision: Precision, caps: DeviceCaps) -> Scalar:
    """The type in which a buffer of weights is stored; whole numbers stay so."""
    if weights.contents.dtype == Scalar.I8.numpy:
        return Scalar.I8
    if precision is Precision.F16:
        return Scalar.F16 if weights.suits_f16 else Scalar.F32
    nbytes, tuning = weights.size * 4, tuning_of(caps)
    if precision is Precision.F32_F16 and nbytes > min(caps.cache_bytes, tuning.rounded_weights):
        return Scalar.F16 if weights.suits_f16 else Scalar.F32
    is_worth_asking = caps.is_gpu and caps.f16_storage and nbytes > tuning.tested_weights
    return Scalar.F16 if is_worth_asking and weights.fits_f16 else Scalar.F32
