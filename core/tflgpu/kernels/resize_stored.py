"""Four stored pixels, mixed by whole weights (`ResizeAttrs.stored`)."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.resize import ResizeAttrs

_DIGIT = 8


def mix_stored(
    k: Builder,
    attributes: ResizeAttrs,
    stored: QuantizeAndDequantize,
    pixels: Sequence[Sequence[Expr]],
    weights: Sequence[Expr | None],
) -> Expr:
    """The mix of ``pixels``, two above and two below, as real numbers.

    Args:
        k: Takes the statements.
        attributes: Those of the node.
        stored: What the pixels' numbers are.
        pixels: f32 lanes.
        weights: Those of the lower row and of the right column, whole numbers in f32; None: 0.
    """
    bits = attributes.bits
    one, half = 1 << bits, 1 << (2 * bits - 1)
    v, u = (k.i32(0) if w is None else k.let(k.cast(w, Scalar.I32), "share") for w in weights)
    shares = [[(one - v) * (one - u), (one - v) * u], [v * (one - u), v * u]]
    shares = [[k.let(k.splat(share, 4), "share") for share in line] for line in shares]
    steps = [
        [k.let(k.cast(round_to_steps(k, stored, x), Scalar.I32), "steps") for x in line]
        for line in pixels
    ]

    def mixed(numbers: Sequence[Sequence[Expr]]) -> Expr:
        (a, b), (c, d) = (
            [x * s for x, s in zip(line, row, strict=True)]
            for line, row in zip(numbers, shares, strict=True)
        )
        return k.let(a + b + (c + d), "mixed")

    if not attributes.fixed:
        found = (mixed(steps) + half) >> (2 * bits)
        return k.cast(found, Scalar.F32) * stored.scale
    # 16 bits and 20 are more than 32: the upper and the lower 8 bits are mixed for themselves.
    upper = mixed([[x >> _DIGIT for x in line] for line in steps])
    lower = mixed([[x & ((1 << _DIGIT) - 1) for x in line] for line in steps])
    kept = 2 * bits - _DIGIT
    rest = k.let((upper & ((1 << kept) - 1)) * (1 << _DIGIT) + lower, "rest")
    whole = k.let((upper >> kept) + (rest >> (2 * bits)), "whole")
    rest = k.let(rest & ((1 << (2 * bits)) - 1), "rest")
    # Halves go away from zero: up where the whole is not negative.
    zero, step = k.const(0, whole.type), k.const(1, whole.type)
    goes_up = k.select(
        whole >= 0, k.select(rest >= half, step, zero), k.select(rest > half, step, zero)
    )
    return k.cast(whole + goes_up, Scalar.F32) * stored.scale
