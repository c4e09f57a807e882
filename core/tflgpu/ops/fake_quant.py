"""FAKE_QUANT (TFLite versions 1-2): floats rounded to the steps of a range.

As in TFLite's kernel (reference/fake_quant.h) the range is shifted so that zero is one of its
steps, and halves round away from zero. A NaN stays one.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Arg, Arrays, Fields, FileForm, OpDef, Sample
from tflgpu.ops.elementwise import infer_unary

_NAME = "FAKE_QUANT"
_F32 = np.float32


@attrs.frozen
class FakeQuant:
    """The range as given, and into how many steps (2 ** num_bits - 1) it is divided."""

    min: float
    max: float
    num_bits: int
    narrow_range: bool = False


@attrs.frozen
class QuantizedRange:
    """A range with zero among its steps; all numbers are exact in f32.

    ``inverse`` is what a number is multiplied by to be counted in steps of ``scale`` from ``low``,
    and ``zero`` which of the steps is zero.
    """

    low: float
    high: float
    scale: float
    inverse: float
    zero: float


def _parse(fields: Fields) -> FakeQuant:
    found = FakeQuant(
        float(_F32(fields.number("min"))),
        float(_F32(fields.number("max"))),
        fields.integer("num_bits"),
        fields.flag("narrow_range"),
    )
    if found.narrow_range:
        raise UnsupportedError(
            f"{_NAME}: narrow_range is for weights; no TFLite kernel computes it"
        )
    if not 1 <= found.num_bits <= 16:
        raise ModelError(f"{_NAME}: num_bits {found.num_bits} is not in [1, 16]")
    if not found.min < found.max or not np.isfinite([found.min, found.max]).all():
        raise ModelError(f"{_NAME}: from {found.min} to {found.max} is no range")
    return found


def steps_of(attributes: FakeQuant) -> QuantizedRange:
    """The steps in f32, as TFLite computes them."""
    low, high = _F32(attributes.min), _F32(attributes.max)
    most = _F32(2**attributes.num_bits - 1)
    scale = (high - low) / most
    from_low = -low / scale
    zero = _F32(0) if from_low < 0 else min(np.floor(from_low + _F32(0.5)), most)
    nudged_low, nudged_high = -zero * scale, (most - zero) * scale
    return QuantizedRange(
        float(nudged_low), float(nudged_high), float(scale), float(_F32(1) / scale), float(zero)
    )


def _reference(attributes: FakeQuant, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    steps = steps_of(attributes)
    low, high, scale, inverse, _ = (_F32(v) for v in attrs.astuple(steps))
    clamped = np.minimum(np.maximum(x.astype(_F32, copy=False), low), high)
    counted = ((clamped - low) * inverse).astype(_F32)
    # All counts are positive. The sum with a half may round up to a whole number just below it, so
    # the rest is looked at instead.
    whole = np.floor(counted)
    whole = whole + (counted - whole >= _F32(0.5))
    return [(whole * scale + low).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(
        id: str, shape: tuple[int, ...], low: float, high: float, bits: int = 8, version: int = 1
    ) -> Sample:
        wide = 1.5 * max(abs(low), abs(high))
        fields = {"min": low, "max": high, "num_bits": bits}
        return Sample(id, fields, (Arg(shape, low=-wide, high=wide),), version=version)

    return [
        sample("around_zero", (1, 5, 7, 3), -1.0, 1.5),
        sample("four_bits", (2, 3, 8), -2.0, 3.0, 4),
        sample("above_zero", (3, 7), 0.5, 4.0),
        sample("below_zero", (13,), -4.0, -0.25),
        sample("two_bits", (2, 3, 1, 5, 6), -1.0, 1.0, 2),
        sample("sixteen_bits", (5, 7), -6.0, 6.0, 16, 2),
        sample("scalar", (), -1.0, 1.0),
    ]


OPS = (
    OpDef(
        _NAME,
        _parse,
        infer_unary(_NAME, frozenset({DType.F32})),
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=2, result_type=0),
        elementwise=True,
    ),
)
