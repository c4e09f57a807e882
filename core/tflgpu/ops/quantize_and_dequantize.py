"""QUANTIZE_AND_DEQUANTIZE: a number as 8 or 16 bits store it.

No file has this op. The float view of a quantized model (`tflgpu.passes.float_view`) puts it
behind every op whose result the file stores quantized, so that rounding and clamping happen where
an integer kernel would do them.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Value
from tflgpu.ops.axes import present
from tflgpu.ops.base import Activation, Arg, Arrays, OpDef, Sample, graph_attributes
from tflgpu.ops.elementwise import infer_unary
from tflgpu.ops.fixed_point import clamp_limits
from tflgpu.values import frozen

OP = "QUANTIZE_AND_DEQUANTIZE"
#: Types in which real numbers stand for stored ones.
REALS = frozenset({DType.F32, DType.F16})


@frozen
class QuantizeAndDequantize:
    """The numbers that can be stored: ``scale`` times every whole number from ``low`` to ``high``.

    ``low`` and ``high`` are the stored type's limits less the zero point. ``even`` says that a
    number half way between two steps becomes the even one, as in XNNPACK, and not the one further
    from 0.
    """

    scale: float
    low: int
    high: int
    even: bool = False

    @classmethod
    def of(cls, quantization: Quantization, dtype: DType) -> QuantizeAndDequantize:
        """What one scale for a tensor of whole numbers of ``dtype`` can store."""
        (scale,), (zero_point,) = quantization.scale, quantization.zero_point
        info = np.iinfo(dtype.numpy)
        return cls(scale, int(info.min) - zero_point, int(info.max) - zero_point)

    @classmethod
    def of_value(cls, value: Value) -> QuantizeAndDequantize:
        """What a quantized tensor, which has one scale, can store."""
        assert value.quant is not None
        return cls.of(value.quant, value.dtype)

    @classmethod
    def clamped(cls, value: Value, activation: Activation) -> QuantizeAndDequantize | None:
        """The same after a fused activation, which is a clamp; None where it is none."""
        assert value.quant is not None
        limits = clamp_limits(activation, value.quant, value.dtype)
        if isinstance(limits, str):
            return None
        (scale,), (zero_point,) = value.quant.scale, value.quant.zero_point
        return cls(scale, limits[0] - zero_point, limits[1] - zero_point)

    @property
    def inverse(self) -> float:
        """``1 / scale``, rounded to f32: what is multiplied by, everywhere, to find the step."""
        return float(np.float32(1.0) / np.float32(self.scale))


def _reference(attributes: QuantizeAndDequantize, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    return [np.asarray(steps_of(attributes, x) * np.float32(attributes.scale)).astype(x.dtype)]


def steps_of(stored: QuantizeAndDequantize, x: Array) -> Array:
    """The whole numbers of steps, in f32, that real numbers are stored as, less the zero point."""
    steps = x.astype(np.float32) * np.float32(stored.inverse)
    # NaN becomes what QUANTIZE stores for it.
    steps = np.where(np.isnan(steps), np.float32(stored.high), steps)
    # The limits are whole numbers, so clamping first changes nothing and avoids overflow.
    steps = np.clip(steps, np.float32(stored.low), np.float32(stored.high))
    if stored.even:
        return np.asarray(np.rint(steps))
    return np.asarray(np.copysign(np.floor(np.abs(steps) + np.float32(0.5)), steps))


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        scale: float,
        low: int,
        high: int,
        reach: float,
        even: bool = False,
    ) -> Sample:
        attributes = QuantizeAndDequantize(scale, low, high, even)
        return Sample.of(id, attributes, Arg(shape, low=-reach, high=reach))

    return [
        sample("i8", (1, 5, 7, 3), 0.05, -121, 134, 8.0),
        sample("u8", (2, 3, 5, 6), 0.02, -128, 127, 2.0),
        sample("u8_from_zero", (1, 3, 5, 8), 1 / 256, 0, 255, 1.5),
        sample("i8_only_negative", (3, 13), 0.5, -255, 0, 150.0),
        sample("large_scale", (7,), 12.5, -128, 127, 2000.0),
        sample("i16", (1, 3, 7, 5), 1e-3, -32768, 32767, 40.0),
        sample("even", (2, 3, 5, 6), 0.05, -121, 134, 8.0, even=True),
    ]


OPS = (OpDef(OP, graph_attributes, infer_unary(OP, REALS), _reference, _samples, elementwise=True),)
