"""`Quantized.digits` of ops that sum products, where data have 16 bits, or 8 and XNNPACK leaves
them.

LiteRT's own kernels round such sums twice, where XNNPACK's are the nearest steps. Of 8 bits one
digit is the whole number. Digits are as long as the sums of their products are whole numbers below
2**24, which f32 has all of; constant weights say how long these sums get.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import Activation
from tflgpu.ops.elementwise import BYTES, QUANTIZED
from tflgpu.ops.facets import Filter
from tflgpu.ops.fixed_point import Multiplier, clamp_limits
from tflgpu.ops.quantized import InDigits
from tflgpu.ops.stored_sums import StoredSums, SumRounding, fits, table

_LONGEST = 1 << 24
_SIXTEEN = 16
#: The largest size of a stored number of 16 bits.
_MOST = 1 << (_SIXTEEN - 1)
#: Bits of digits, longest first: 2, 3 and 4 make 16 bits.
_BITS = (8, 6, 4)
#: What a byte less its zero point takes, and the largest size of one.
_NINE, _BYTE = 9, 255


def of_fours(node: Node) -> bool:
    """`of_filter`'s ``own`` of an op of which XNNPACK takes no 4-bit weights."""
    return node.input(1).packed is not None


def _scale(value: Value) -> float | None:
    """Of a tensor of 8 bits, or of 16 without a zero point, which no kernel of TFLite's takes; with
    one scale."""
    quant = value.quant
    if value.dtype not in QUANTIZED or quant is None or quant.per_axis:
        return None
    if value.dtype is DType.I16 and any(quant.zero_point):
        return None
    scale = float(np.float32(quant.scale[0]))
    return scale if scale >= float(np.finfo(np.float32).tiny) else None


def _result(
    node: Node, activation: Activation, *, wide: bool, rounds: SumRounding = SumRounding.TWICE
) -> StoredSums | None:
    (out,) = node.outputs
    scale = _scale(out)
    if scale is None or out.quant is None:
        return None
    limits = clamp_limits(activation, out.quant, out.dtype)
    if isinstance(limits, str):
        return None
    return StoredSums((0,), wide, scale, out.quant.zero_point[0], *limits, rounds)


def _made(
    attributes: object,
    finish: StoredSums,
    split: Mapping[int, int],
    bits: int,
    constants: dict[int, Array],
    dropped: int,
    numbers: Array,
) -> InDigits:
    """``split`` is how many bits an operand has."""
    return InDigits(
        attributes,
        {i: -(-whole // bits) for i, whole in split.items()},
        bits,
        constants,
        dropped,
        lambda exponents: attrs.evolve(finish, exponents=exponents),
        numbers,
    )


def of_filter(
    roles: Filter,
    *,
    narrow: bool = False,
    products: bool = False,
    own: Callable[[Node], bool] | None = None,
) -> Callable[[Node], InDigits | None]:
    """Of an op with a constant filter of 8 bits and, as its last operand, a constant bias.

    Args:
        roles: Which operand is what.
        narrow: Totals have 32 bits even where the bias has 64, and without such a bias one scale of
            a filter is multiplied by that of the data in f32: TFLite's FULLY_CONNECTED.
        products: Totals of 32 bits are rounded as LiteRT's matrix products do.
        own: Of a node with data of 8 bits, whether XNNPACK leaves it to LiteRT's own kernel; None:
            it takes all. Not asked of nodes whose filter is computed.
    """

    def in_digits(node: Node) -> InDigits | None:
        weights, bias = node.input(roles.weights), node.optional_input(roles.bias)
        source, quant, data = _scale(node.input(roles.source)), weights.quant, weights.data
        if source is None or quant is None or data is None or weights.dtype not in BYTES:
            return None
        if bias is not None and bias.contents is None:
            return None
        dtype = node.input(roles.source).dtype
        is_bytes = dtype in BYTES
        if node.outputs[0].dtype is not dtype or (is_bytes and (own is None or not own(node))):
            return None
        if weights.dtype is DType.U8 and not quant.per_axis:
            data = data.astype(np.int16) - quant.zero_point[0]
        elif weights.dtype is DType.U8 or any(quant.zero_point):
            return None
        channels = weights.shape[roles.out]
        if len(quant.scale) not in (1, channels) or (
            len(quant.scale) > 1 and quant.axis != roles.out
        ):
            return None
        wide = not narrow and not is_bytes and (bias is None or bias.dtype is DType.I64)
        rounds = SumRounding.TWICE
        if is_bytes:
            rounds = SumRounding.UP if products else SumRounding.EIGHTS
        elif products:
            rounds = SumRounding.ONCE if _has_64_bits(node, bias) else SumRounding.UP
        finish = _result(node, node.attrs.activation, wide=wide, rounds=rounds)
        if finish is None:
            return None
        units = [source * float(s) for s in quant.scale]
        if narrow and len(units) == 1 and rounds is SumRounding.UP:
            units = [float(np.float32(units[0]))]
        multipliers = [Multiplier.of(unit / finish.scale) for unit in units]
        multipliers *= channels // len(multipliers)
        others = tuple(axis for axis in range(len(weights.shape)) if axis != roles.out)
        sizes = np.abs(data.astype(np.int64)).sum(axis=others)
        offsets = None if bias is None or bias.contents is None else bias.data
        most = sizes * (_BYTE if is_bytes else _MOST)
        if offsets is not None:
            most = most + np.abs(offsets.reshape(-1).astype(np.int64))
        bits = _bits(int(sizes.max()), (_NINE,) if is_bytes else _BITS)
        if bits is None or not fits(finish, most, multipliers):
            return None
        attributes = attrs.evolve(node.attrs, activation=Activation.NONE)
        numbers = table(offsets, multipliers, channels)
        constants = {roles.weights: data.astype(np.float32)}
        dropped = len(node.inputs) - roles.bias if len(node.inputs) > roles.bias else 0
        split = {roles.source: _NINE if is_bytes else _SIXTEEN}
        return _made(attributes, finish, split, bits, constants, dropped, numbers)

    return in_digits


def _has_64_bits(node: Node, bias: Value | None) -> bool:
    """Whether a bias has 64 bits, or, where there is none, would have by the file's options."""
    if bias is not None:
        return bias.dtype is DType.I64
    fields = {} if node.source is None else node.source.fields
    return fields.get("quantized_bias_type") == DType.I64.tflite


def _bits(size: int, lengths: Sequence[int]) -> int | None:
    """Of the longest digits whose products with weights of this size, added up, are exact."""
    return next((bits for bits in lengths if size << (bits - 1) < _LONGEST), None)


def of_matrices(depth: Callable[[Node], int]) -> Callable[[Node], InDigits | None]:
    """Of an op that multiplies two operands, both of 16 bits, whose sums have ``depth``
    products."""

    def in_digits(node: Node) -> InDigits | None:
        if any(v.dtype is not DType.I16 for v in (node.input(0), node.input(1), *node.outputs)):
            return None
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
        return _made(node.attrs, finish, {0: _SIXTEEN, 1: _SIXTEEN}, bits, {}, 0, numbers)

    return in_digits


def of_rows(node: Node, activation: Activation, attributes: object) -> InDigits | None:
    """Of a FULLY_CONNECTED without a bias whose filter is computed.

    Args:
        node: On quantized operands: data of 8 or 16 bits, a filter of as many, or of 8.
        activation: What is fused.
        attributes: Its attributes without that.
    """
    x, weights = node.input(0), node.input(1)
    source, other, depth = _scale(x), _scale(weights), weights.shape[1]
    wide = weights.dtype is DType.I16
    finish = _result(node, activation, wide=wide, rounds=SumRounding.UP)
    if source is None or other is None or finish is None or x.dtype is not node.outputs[0].dtype:
        return None
    if weights.dtype is not x.dtype and (x.dtype, weights.dtype) != (DType.I16, DType.I8):
        return None
    most = [_BYTE if v.dtype in BYTES else _MOST for v in (x, weights)]
    lengths = (_NINE,) if x.dtype in BYTES else _BITS
    longest = [(b, [min(size, 1 << (b - 1)) for size in most]) for b in lengths]
    bits = next((b for b, (m, n) in longest if depth * m * n < _LONGEST), None)
    by = [Multiplier.of(float(np.float32(source * other)) / finish.scale)]
    if bits is None or not fits(finish, np.array([depth * most[0] * most[1]]), by):
        return None
    numbers = table(None, by, weights.shape[0])
    split = {i: _bits_of(v) for i, v in enumerate((x, weights))}
    return _made(attributes, finish, split, bits, {}, 0, numbers)


def _bits_of(value: Value) -> int:
    assert value.quant is not None
    if value.dtype is DType.I16:
        return _SIXTEEN
    return _NINE - (value.dtype is DType.I8 and not any(value.quant.zero_point))


def exponents(split: Sequence[int], bits: int) -> list[tuple[tuple[int, ...], int]]:
    """Every choice of one digit for each operand, of which there are so many, and the power of two
    by which what comes of it counts."""
    choices = itertools.product(*(range(count) for count in split))
    return [(choice, bits * sum(choice)) for choice in choices]
