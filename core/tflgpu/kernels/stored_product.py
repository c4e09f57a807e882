"""STORED_PRODUCT: one invocation multiplies four lines of elements, in the order in which they are
stored.

The language has no 64-bit numbers: a product of 32 and 17 bits is three limbs of 16 bits, as in
`tflgpu.kernels.stored_sums`.
"""

from __future__ import annotations

import numpy as np

from tflgpu.kernels.moves import channel_of
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.kernels.stored_sums import carried, half_of, times_wide
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.lowering.view import decompose
from tflgpu.ops.axes import integers
from tflgpu.ops.stored_product import OP, StoredProduct, reduced

_LIMB, _MASK = 16, 0xFFFF


def _rescaled(k: Builder, attributes: StoredProduct, limbs: list[Expr]) -> Expr:
    places, bits = divmod(attributes.right, _LIMB)
    half = [int(limb) for limb in half_of(attributes.right)]
    rows = [attributes.factor, *half, places, bits]
    return times_wide(k, carried(k, limbs), [k.const(row, I32x4) for row in rows])


def _limbs(k: Builder, product: Expr, by: Expr) -> list[Expr]:
    """``product * by`` of any i32 and of a number of 17 bits, or one of 16 with its sign: no part
    takes more than 32 bits."""
    product, by = k.let(product, "product"), k.let(by, "by")
    low = k.let((product & _MASK) * by, "low")
    high = k.let((product >> _LIMB) * by, "high")
    return [low & _MASK, (low >> _LIMB) + (high & _MASK), high >> _LIMB]


def _build(low: Lowering) -> None:
    attributes: StoredProduct = low.attrs
    shape = low.node.input(0).shape
    axes = reduced(integers(low.node.const(1)), len(shape))
    strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    kept = [i for i in range(len(shape)) if i not in axes]
    along = [shape[i] for i in axes]

    def place(k: Builder, index: Expr, dims: list[int]) -> Expr:
        parts = decompose(k, index, [shape[i] for i in dims])
        total: Expr = k.i32(0)
        for part, axis in zip(parts, dims, strict=True):
            total = total + part * strides[axis]
        return k.let(total, "at")

    k = low.kernel("stored_product")
    view = low.read(k, 0)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        channels = out.layout.channels
        bases = [
            place(
                k, outer * channels + channel_of(k, slice_, min(lane, channels - 1), channels), kept
            )
            for lane in range(4)
        ]

        def steps(offset: Expr) -> Expr:
            given = k.vec([view.load_flat(base + offset) for base in bases])
            found = round_to_steps(k, attributes.operand, k.cast(given, Scalar.F32))
            return k.let(k.cast(found, Scalar.I32), "steps")

        product = k.var(steps(k.i32(0)), "product")
        with k.loop(1, int(np.prod(along, dtype=np.int64)), name="step") as step:
            limbs = _limbs(k, product, steps(place(k, step, list(axes))))
            k.set(product, _rescaled(k, attributes, limbs))
        whole = k.let(product, "whole")
        last = _rescaled(k, attributes, [whole & _MASK, (whole >> _LIMB) & _MASK, whole >> 31])
        result = attributes.result
        found = k.cast(k.clamp(last, result.low, result.high), Scalar.F32)
        out.store(outer, slice_, found * result.scale)


RULES = (KernelRule(OP, "line", _build, takes(FLOATS, operands=1)),)
