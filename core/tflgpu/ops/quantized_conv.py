"""QUANTIZED_CONV_2D: CONV_2D of an i8 tensor with an i8 filter, on the numbers as they are stored.

No file has this op: with integer numerics it takes the place of a CONV_2D of one group
(`tflgpu.passes.float_view`). `ops.quantized_products` has its arithmetic.
"""

from __future__ import annotations

from typing import Any

from tflgpu.ir.graph import Shape
from tflgpu.ops.base import (
    Activation,
    Draw,
    Padding,
    Sample,
)
from tflgpu.ops.conv import conv_sample
from tflgpu.ops.quantized_products import (
    RELUS,
    stored_sample,
    sums_op,
)

OP = "QUANTIZED_CONV_2D"


# Samples


def _samples() -> list[Sample]:
    x, y, valid = (0.03, -5), (0.4, 7), Padding.VALID

    def case(
        *args: Any, to: tuple[float, int] = y, scale: float | None = None, **options: Any
    ) -> Sample:
        return stored_sample(conv_sample(*args, **options), args[2][0], x, to, scale)

    return [
        case("plain", (1, 7, 11, 5), (6, 3, 3, 5)),
        case("aligned", (1, 8, 8, 8), (16, 3, 3, 8), activation=Activation.RELU),
        case("valid", (2, 9, 7, 3), (5, 3, 2, 3), padding=valid, activation=Activation.RELU6),
        case("stride2", (1, 13, 11, 3), (9, 3, 3, 3), stride=(2, 2)),
        case("uneven", (1, 11, 13, 2), (3, 5, 2, 2), stride=(3, 1), padding=valid),
        case("dilated", (1, 13, 9, 3), (4, 3, 3, 3), dilation=(2, 3)),
        case("pointwise", (2, 5, 7, 13), (11, 1, 1, 13), activation=Activation.RELU_N1_TO_1),
        case("pointwise_deep", (1, 3, 5, 131), (67, 1, 1, 131), to=(1.5, -20)),
        case("one_pixel", (1, 1, 1, 17), (19, 1, 1, 17)),
        case("one_pixel_3x3", (3, 1, 1, 5), (4, 3, 3, 5)),
        case("one_channel", (1, 9, 5, 1), (1, 3, 3, 1)),
        case("no_bias", (1, 5, 7, 3), (4, 3, 3, 3), bias=False),
        # Sums are divided by 256, so that some are halves.
        case("halves", (1, 11, 13, 1), (7, 1, 1, 1), to=(0.03, 3), scale=2.0**-8),
        # Scales of the result by which some sums grow: they are shifted to the left first.
        case("growing", (1, 5, 7, 1), (21, 1, 1, 1), to=(1e-4, 3)),
        case("vanishing", (1, 5, 7, 3), (4, 3, 3, 3), to=(1e6, -1)),
    ]


def _generate(draw: Draw) -> Sample:
    height, width = draw.size(11), draw.size(11)
    taps = min(height, draw.choice((3, 1, 2))), min(width, draw.choice((3, 1, 2)))
    inner, out = draw.size(13), draw.size(11)
    plain = conv_sample(
        "conv",
        (draw.integer(1, 2), height, width, inner),
        (out, *taps, inner),
        stride=(draw.integer(1, 3), draw.integer(1, 3)),
        padding=draw.choice((Padding.SAME, Padding.VALID)),
        activation=draw.choice((Activation.NONE, *RELUS)),
        bias=draw.choice((True, False)),
    )
    zeros = draw.integer(-128, 127), draw.integer(-128, 127)
    source, result = draw.integer(1, 512) / 4096, draw.integer(64, 16384) / 4096
    return stored_sample(plain, out, (source, zeros[0]), (result, zeros[1]))


def _refused(image: Shape, filters: Shape) -> str:
    if image[3] == filters[3]:
        return ""
    return f"an input of {image[3]} channels, and a filter of {filters[3]}"


OPS = (sums_op(OP, "CONV_2D", 0, _refused, lambda seen, taps: seen @ taps.T, _samples, _generate),)
