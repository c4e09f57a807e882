"""LOCAL_RESPONSE_NORMALIZATION: each channel over a power of its neighbours' energy.

TFLite version 1, f32, rank 4: y[c] = x[c] / (bias + alpha * sum of x[j]^2)^beta, j within
``radius`` channels of c.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Accuracy, Arg, Arrays, Fields, OpDef, Operands, Sample
from tflgpu.ops.items import each_row
from tflgpu.ops.positions import of_items
from tflgpu.values import frozen

_NAME = "LOCAL_RESPONSE_NORMALIZATION"


@frozen
class LocalResponse:
    """Channels on each side, and the three constants of the formula."""

    radius: int
    bias: float
    alpha: float
    beta: float


def _parse(fields: Fields) -> LocalResponse:
    return LocalResponse(
        fields.integer("radius", minimum=0),
        fields.number("bias"),
        fields.number("alpha"),
        fields.number("beta"),
    )


def _infer(attributes: LocalResponse, operands: Operands) -> list[TensorSpec]:
    if len(operands) != 1 or operands[0] is None:
        raise ModelError(f"{_NAME} takes one operand, got {len(operands)}")
    if operands[0].rank != 4 or not operands[0].dtype.is_float:
        raise ModelError(f"{_NAME} takes a float tensor of rank 4, got {operands[0].spec}")
    return [operands[0].spec]


def _reference(attributes: LocalResponse, arrays: Arrays) -> list[Array]:
    (x,) = arrays
    assert x is not None
    wide = x.astype(np.result_type(x.dtype, np.float32))
    channels = x.shape[3]
    radius = min(attributes.radius, max(channels - 1, 0))  # there is nothing farther away
    energy = np.zeros_like(wide)
    for shift in range(-radius, radius + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            energy[..., low:high] += wide[..., low + shift : high + shift] ** 2
    scale = (attributes.bias + attributes.alpha * energy) ** -attributes.beta
    return [(wide * scale).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], **fields: float) -> Sample:
        options = {"radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75, **fields}
        return Sample(id, options, (Arg(shape, low=-3, high=3),))

    return [
        sample("alexnet", (1, 3, 5, 13)),
        sample("batch", (3, 2, 2, 8), radius=5, bias=2.0),
        sample("wider_than_the_tensor", (1, 2, 3, 3), radius=7, beta=0.5),
        sample("alone", (1, 2, 3, 6), radius=0, alpha=1.0, beta=1.0),
        sample("one_channel", (2, 3, 1, 1), beta=0.25),
        sample("too_wide_to_unroll", (1, 2, 3, 71), radius=26, bias=1.0),
    ]


OPS = (
    OpDef(
        _NAME,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.TRANSCENDENTAL,
        batch=each_row(0),
        positions=of_items,
    ),
)
