"""QUANTIZED_DEPTHWISE_CONV_2D: DEPTHWISE_CONV_2D of an i8 tensor with an i8 filter, on the numbers
as they are stored.

No file has this op: with integer numerics it takes the place of a DEPTHWISE_CONV_2D
(`tflgpu.passes.float_view`). `ops.quantized_products` has its arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.ops.base import (
    Activation,
    Draw,
    Padding,
    Sample,
)
from tflgpu.ops.depthwise import depthwise_sample
from tflgpu.ops.quantized_products import (
    RELUS,
    stored_sample,
    sums_op,
)

OP = "QUANTIZED_DEPTHWISE_CONV_2D"


# Samples


def _samples() -> list[Sample]:
    x, y, valid = (0.03, -5), (0.2, 7), Padding.VALID

    def case(
        id: str,
        image: tuple[int, int, int, int],
        taps: tuple[int, int],
        multiplier: int = 1,
        *,
        to: tuple[float, int] = y,
        scale: float | None = None,
        **options: Any,
    ) -> Sample:
        plain = depthwise_sample(id, image, taps, multiplier, **options)
        return stored_sample(plain, image[3] * multiplier, x, to, scale)

    return [
        case("plain", (1, 7, 11, 5), (3, 3)),
        case("aligned", (1, 8, 8, 8), (3, 3), activation=Activation.RELU6),
        case("valid", (2, 9, 7, 3), (3, 2), padding=valid, activation=Activation.RELU),
        case("stride2", (1, 13, 11, 6), (3, 3), stride=(2, 2)),
        case("dilated", (1, 13, 9, 5), (3, 3), dilation=(2, 3)),
        case("multiplier2", (1, 5, 7, 3), (3, 3), 2),
        case("multiplier3", (2, 7, 5, 5), (3, 3), 3, stride=(2, 2), activation=Activation.RELU),
        case("multiplier4", (1, 5, 5, 2), (3, 3), 4),
        case("from_one_channel", (1, 7, 5, 1), (3, 3), 9),
        case("one_pixel", (3, 1, 1, 17), (3, 3)),
        case("pointwise", (1, 5, 7, 6), (1, 1), activation=Activation.RELU_N1_TO_1),
        case("no_bias", (1, 7, 5, 9), (3, 3), bias=False),
        # Sums are divided by 256, so that some are halves.
        case("halves", (1, 11, 13, 7), (1, 1), to=(0.03, 3), scale=2.0**-8),
        # Scales of the result by which some sums grow: they are shifted to the left first.
        case("growing", (1, 5, 7, 21), (1, 1), to=(1e-4, 3)),
    ]


def _generate(draw: Draw) -> Sample:
    height, width = draw.size(11), draw.size(11)
    taps = min(height, draw.choice((3, 1, 2))), min(width, draw.choice((3, 1, 2)))
    image, multiplier = (
        (draw.integer(1, 2), height, width, draw.size(13)),
        draw.choice((1, 1, 2, 3)),
    )
    plain = depthwise_sample(
        "depthwise",
        image,
        taps,
        multiplier,
        stride=(draw.integer(1, 3), draw.integer(1, 3)),
        padding=draw.choice((Padding.SAME, Padding.VALID)),
        activation=draw.choice((Activation.NONE, *RELUS)),
        bias=draw.choice((True, False)),
    )
    zeros = draw.integer(-128, 127), draw.integer(-128, 127)
    source, result = draw.integer(1, 512) / 4096, draw.integer(64, 8192) / 4096
    return stored_sample(plain, image[3] * multiplier, (source, zeros[0]), (result, zeros[1]))


def _refused(image: Shape, filters: Shape) -> str:
    if filters[0] == 1 and not filters[3] % image[3]:
        return ""
    return f"a filter of shape {list(filters)} for {image[3]} channels"


def _product(seen: Array, taps: Array) -> Array:
    return np.asarray(np.repeat(seen, taps.shape[1] // seen.shape[3], axis=3) * taps[0])


OPS = (sums_op(OP, "DEPTHWISE_CONV_2D", 3, _refused, _product, _samples, _generate),)
