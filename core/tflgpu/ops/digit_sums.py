"""`OpDef.in_digits` of ops that sum products, where data have 16 bits.

Digits are as long as the sums of their products are whole numbers below 2**24, which f32 has all of;
constant weights say how long these sums get.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import Activation
from tflgpu.ops.facets import Filter, InDigits
from tflgpu.ops.fixed_point import Multiplier, clamp_limits
from tflgpu.ops.stored_sums import Rounds, StoredSums, fits, table

_LONGEST = 1 << 24
_SIXTEEN = 16
#: The largest size of a stored number of 16 bits.
_MOST = 1 << (_SIXTEEN - 1)
#: Bits of digits, longest first: 2, 3 and 4 make 16 bits.
_BITS = (8, 6, 4)


def _scale(value: Value) -> float | None:
    """Of a tensor of 16 bits with one scale and without a zero point, which no kernel of TFLite's
    takes."""
    quant = value.quant
    if value.dtype is not DType.I16 or quant is None or quant.per_axis or any(quant.zero_point):
        return None
    scale = float(np.float32(quant.scale[0]))
    return scale if scale >= float(np.finfo(np.float32).tiny) else None


def _result(
    node: Node, activation: Activation, *, wide: bool, rounds: Rounds = Rounds.TWICE
) -> StoredSums | None:
    (out,) = node.outputs
    scale = _scale(out)
    if scale is None or out.quant is None:
        return None
    limits = clamp_limits(activation, out.quant, out.dtype)
    return None if isinstance(limits, str) else StoredSums((0,), wide, scale, 0, *limits, rounds)


def _made(
    attributes: object, finish: StoredSums, split: Sequence[int], bits: int,
    constants: dict[int, Array], dropped: int, numbers: Array,
) -> InDigits:  # fmt: skip
    count = -(-_SIXTEEN // bits)
    return InDigits(
        attributes, dict.fromkeys(split, count), bits, constants, dropped,
        lambda exponents: attrs.evolve(finish, exponents=exponents), numbers,
    )  # fmt: skip


def of_filter(
    roles: Filter, activation_field: str, *, narrow: bool = False, products: bool = False
) -> Callable[[Node], InDigits | None]:
    """Of an op with a constant filter of 8 bits and, as its last operand, a constant bias.

    Args:
        roles: Which operand is what.
        activation_field: The attribute that holds the fused activation; "" = there is none.
        narrow: Totals have 32 bits even where the bias has 64, and without such a bias one scale of a filter
            is multiplied by that of the data in f32: TFLite's FULLY_CONNECTED.
        products: Totals of 32 bits are rounded as LiteRT's matrix products do.
    """

    def in_digits(node: Node) -> InDigits | None:
        weights, bias = node.input(roles.weights), node.optional_input(roles.bias)
        source, quant, data = _scale(node.input(roles.source)), weights.quant, weights.data
        if source is None or quant is None or data is None or weights.dtype is not DType.I8:
            return None
        if any(quant.zero_point) or (bias is not None and bias.data is None):
            return None
        channels = weights.shape[roles.out]
        if len(quant.scale) not in (1, channels) or (
            len(quant.scale) > 1 and quant.axis != roles.out
        ):
            return None
        activation = getattr(node.attrs, activation_field) if activation_field else Activation.NONE
        wide = not narrow and (bias is None or bias.dtype is DType.I64)
        rounds = Rounds.TWICE
        if products:
            rounds = Rounds.ONCE if bias is not None and bias.dtype is DType.I64 else Rounds.UP
        finish = _result(node, activation, wide=wide, rounds=rounds)
        if finish is None:
            return None
        units = [source * float(s) for s in quant.scale]
        if narrow and len(units) == 1 and rounds is Rounds.UP:
            units = [float(np.float32(units[0]))]
        multipliers = [Multiplier.of(unit / finish.scale) for unit in units]
        multipliers *= channels // len(multipliers)
        others = tuple(axis for axis in range(len(weights.shape)) if axis != roles.out)
        sizes = np.abs(data.astype(np.int64)).sum(axis=others)
        offsets = None if bias is None or bias.data is None else bias.data
        most = sizes * _MOST
        if offsets is not None:
            most = most + np.abs(offsets.reshape(-1).astype(np.int64))
        bits = _bits(int(sizes.max()))
        if bits is None or not fits(finish, most, multipliers):
            return None
        attributes = node.attrs
        if activation_field:
            attributes = attrs.evolve(attributes, **{activation_field: Activation.NONE})
        numbers = table(offsets, multipliers, channels)
        constants = {roles.weights: data.astype(np.float32)}
        dropped = len(node.inputs) - roles.bias if len(node.inputs) > roles.bias else 0
        return _made(attributes, finish, (roles.source,), bits, constants, dropped, numbers)

    return in_digits


def _bits(size: int) -> int | None:
    """Of the longest digits whose products with weights of this size, added up, are exact."""
    return next((bits for bits in _BITS if size << (bits - 1) < _LONGEST), None)


def of_matrices(depth: Callable[[Node], int]) -> Callable[[Node], InDigits | None]:
    """Of an op that multiplies two operands, both of 16 bits, whose sums have ``depth`` products."""

    def in_digits(node: Node) -> InDigits | None:
        scales = [_scale(v) for v in (node.input(0), node.input(1))]
        finish, products = _result(node, Activation.NONE, wide=True), depth(node)
        if finish is None or scales[0] is None or scales[1] is None:
            return None
        by = [Multiplier.of(scales[0] * scales[1] / finish.scale)]
        bits = next((b for b in _BITS if products << (2 * b - 2) < _LONGEST), None)
        if bits is None or not fits(finish, np.array([products * _MOST * _MOST]), by):
            return None
        shape = node.outputs[0].shape
        numbers = table(None, by, shape[-1] if shape else 1)
        return _made(node.attrs, finish, (0, 1), bits, {}, 0, numbers)

    return in_digits


def exponents(split: Sequence[int], bits: int) -> list[tuple[tuple[int, ...], int]]:
    """Every choice of one digit for each operand, of which there are so many, and the power of two by
    which what comes of it counts."""
    choices = itertools.product(*(range(count) for count in split))
    return [(choice, bits * sum(choice)) for choice in choices]
