"""ExampleSwish: ``x * sigmoid(beta * x)``; its options are beta as four little-endian bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import numpy as np
from tflgpu.sdk.ops import (
    Accuracy,
    Arg,
    Array,
    Draw,
    DType,
    Fields,
    ModelError,
    OpDef,
    Operand,
    Sample,
    TensorSpec,
)

NAME = "ExampleSwish"


@attrs.frozen
class Swish:
    """The op's attributes."""

    beta: float


def options(beta: float) -> bytes:
    """The custom options of a node."""
    return struct.pack("<f", beta)


def _parse(fields: Fields) -> Swish:
    if len(fields.custom_options) != 4:
        raise ModelError(f"{NAME}: its options have {len(fields.custom_options)} bytes, not 4")
    return Swish(*struct.unpack("<f", fields.custom_options))


def _infer(attributes: Swish, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    if len(operands) != 1 or operands[0] is None or operands[0].dtype is not DType.F32:
        raise ModelError(f"{NAME} takes one f32 tensor")
    return [operands[0].spec]


def _reference(attributes: Swish, arrays: Sequence[Array | None]) -> list[Array]:
    x = np.asarray(arrays[0], np.float32)
    return [np.asarray(x / (1 + np.exp(np.float32(-attributes.beta) * x)), np.float32)]


def _sample(name: str, beta: float, *shape: int) -> Sample:
    return Sample(name, {}, (Arg(shape, low=-4, high=4),), custom_options=options(beta))


def _samples() -> list[Sample]:
    return [
        _sample("image", 1.0, 1, 5, 7, 3),
        _sample("aligned", 1.702, 2, 3, 8),
        _sample("vector", -0.5, 13),
        _sample("scalar", 1.0),
    ]


def _generate(draw: Draw) -> Sample:
    shape = [draw.size(9) for _ in range(draw.integer(0, 4))]
    return _sample("generated", draw.choice((1.0, 0.25, -2.0)), *shape)


OP = OpDef(
    NAME, _parse, _infer, _reference, _samples, accuracy=Accuracy.TRANSCENDENTAL,
    elementwise=True, is_custom=True, generate=_generate,
)  # fmt: skip
