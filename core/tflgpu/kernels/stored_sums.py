"""STORED_SUMS in a language that has no 64-bit numbers: totals are limbs of 16 bits.

A limb and a half fit 32 bits, so that a product of a limb and a multiplier of 15 bits does, and
what goes over from one limb to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.fixed_point import shift_right, times_once, up, upper_half
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.weights import whole_slices
from tflgpu.ops.stored_sums import LARGEST, OP, VECTOR, StoredSums, SumRounding

_LIMB, _MASK = 16, 0xFFFF


def _add(k: Builder, limbs: list[Expr], whole: Expr, exponent: int) -> None:
    """Add ``whole * 2**exponent`` to limbs that are not carried yet."""
    at, bits = divmod(exponent, _LIMB)
    low, high = k.let((whole & _MASK) << bits, "low"), k.let((whole >> _LIMB) << bits, "high")
    for index, part in ((at, low & _MASK), (at + 1, low >> _LIMB), (at + 1, high)):
        if index < len(limbs):
            limbs[index] = limbs[index] + part
        # Beyond the third limb there is nothing but its sign.


def carried(k: Builder, limbs: Sequence[Expr]) -> list[Expr]:
    """The same number with limbs of 16 bits, the last with the sign."""
    found: list[Expr] = []
    carry: Expr | None = None
    for limb in limbs:
        total = k.let(limb if carry is None else limb + carry, "limb")
        found.append(total)
        carry = k.let(total >> _LIMB, "carry")
    return [k.let(limb & _MASK, "limb") for limb in found[:-1]] + [found[-1]]


def half_of(right: Array | int) -> list[Array]:
    """A half of what is left of a shift to the right, in limbs."""
    half = np.left_shift(np.int64(1), np.asarray(right, np.int64) - 1)
    return [half & _MASK, (half >> _LIMB) & _MASK, half >> (2 * _LIMB)]


def _wide_rows(table: Array) -> Array:
    """Of each channel what its total is multiplied by, a half of the last step in limbs, by how
    many limbs the product is shifted to the right, and how many bits more."""
    value, shift = table[3].astype(np.int64), table[4].astype(np.int64)
    factor = np.where(value < 0x7FFF0000, (value + (1 << 15)) >> 16, 0x7FFF)
    right = 15 - shift
    return np.stack([factor, *half_of(right), right // _LIMB, right % _LIMB])


def _narrow_rows(table: Array) -> Array:
    value, shift = table[3].astype(np.int64), table[4].astype(np.int64)
    return np.stack([value, np.maximum(shift, 0), np.maximum(-shift, 0)])


def times_wide(k: Builder, limbs: Sequence[Expr], rows: Sequence[Expr]) -> Expr:
    """Rounded to the nearest, halves up; it fits 32 bits."""
    factor, *half, places, bits = rows
    a, b, c = carried(k, [limb * factor for limb in limbs])
    a, b, c = carried(k, [a + half[0], b + half[1], c + half[2]])
    none, one = k.const(0, I32x4), places.eq(1)
    first = k.let(k.select(places.eq(0), a, k.select(one, b, c)), "first")
    second = k.let(k.select(places.eq(0), b, k.select(one, c, none)), "second")
    third = k.let(k.select(places.eq(0), c, none), "third")
    left = k.let(k.const(_LIMB, I32x4) - bits, "left")
    return (first >> bits) + (second << left) + ((third << _LIMB) << left)


def _times_narrow(
    k: Builder, limbs: Sequence[Expr], rows: Sequence[Expr], rounds: SumRounding, together: Expr
) -> Expr:
    """``together`` is whether these channels are `SumRounding.EIGHTS`."""
    value, left, right = rows
    a, b, c = limbs
    total = (c * (1 << _LIMB) + b) * (1 << _LIMB) + a
    if rounds is SumRounding.ONCE:
        return times_once(k, total << left, value, right)
    product = k.let(upper_half(k, total << left, value), "product")
    if rounds is SumRounding.UP:
        return up(k, product, right)
    if rounds is SumRounding.EIGHTS:
        return k.select(together, up(k, product, right), shift_right(k, product, right))
    return shift_right(k, product, right)


def _build(low: Lowering) -> None:
    attributes: StoredSums = low.attrs
    count = len(attributes.exponents)
    k = low.kernel("stored_sums")
    sums = [low.read(k, i) for i in range(count)]
    table = low.node.const(count)
    packed = _packed(table, _wide_rows(table) if attributes.wide else _narrow_rows(table))
    numbers = low.weights(k, packed, "numbers", scalar=Scalar.I32)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        rows = [
            k.let(k.load(numbers, slice_ * packed.shape[1] + row), "row")
            for row in range(packed.shape[1])
        ]
        limbs: list[Expr] = list(rows[:3])
        for view, exponent in zip(sums, attributes.exponents, strict=True):
            part = k.call("round", k.cast(view.load(outer, slice_), Scalar.F32))
            part = k.clamp(part, -float(LARGEST), float(LARGEST))  # and a NaN becomes 0
            _add(k, limbs, k.let(k.cast(part, Scalar.I32), "sum"), exponent)
        total = carried(k, limbs)
        if attributes.wide:
            whole = times_wide(k, total, rows[3:])
        else:
            channels = low.node.outputs[0].shape[-1] if low.node.outputs[0].shape else 1
            together = slice_ < channels // VECTOR * (VECTOR // 4)
            whole = _times_narrow(k, total, rows[3:], attributes.rounds, together)
        zero = attributes.zero_point
        steps = k.clamp(whole + zero, attributes.low, attributes.high) - zero
        out.store(outer, slice_, k.cast(steps, Scalar.F32) * attributes.scale)


def _packed(table: Array, rows: Array) -> Array:
    """[slice, row, lane], of the bias and of ``rows``, zero-padded."""
    padded = whole_slices(np.concatenate([table[:3].astype(np.int64), rows]), np.int32)
    return np.asarray(padded.reshape(len(padded), -1, 4).transpose(1, 0, 2))


def _accepts(node: Node, site: Site) -> str | None:
    return takes(FLOATS, len(node.attrs.exponents))(node, site)


RULES = (KernelRule(OP, "limbs", _build, _accepts),)
