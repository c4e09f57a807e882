"""Shared by kernels of sums of stored i8 numbers: what they take, and finishing a sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.fixed_point import shift_right, upper_half
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import Site, takes
from tflgpu.ops.quantized_products import QuantizedSums

#: What there is for each slice of output channels: bias, value, left, right.
_ROWS = 4


def finisher(low: Lowering, k: Builder, column: Expr) -> Callable[[Expr], Expr]:
    """A function that turns the sums of slice ``column`` into stored numbers. It loads its factors
    where it is called."""
    node, attributes = low.node, low.attrs
    bias = node.optional_input(2)
    packed = _pack_factors(attributes, None if bias is None else bias.data)
    factors = low.weights(k, packed, "factors", scalar=Scalar.I32)
    offset, value, left, right = (
        k.let(k.load(factors, column * _ROWS + i), name)
        for i, name in enumerate(("bias", "value", "left", "right"))
    )
    grows = any(m.left for m in attributes.multipliers)

    def finish(sums: Expr) -> Expr:
        total = sums + offset
        half = upper_half(k, total << left if grows else total, value)
        result = shift_right(k, half, right) + attributes.result_zero
        return k.clamp(result, attributes.low, attributes.high)

    return finish


def byte_storage(low: Lowering) -> Scalar:
    """The type in which a filter is stored."""
    return low.integers.inside(DType.I8, low.caps)


def constants_only(node: Node, site: Site) -> str | None:
    """Accepts nodes on i8 whose filter and bias are constants."""
    bias = node.optional_input(2)
    if not node.input(1).is_const or (bias is not None and not bias.is_const):
        return f"{node.op}: the filter or the bias is not a constant"
    return takes(frozenset({DType.I8}), 2, results=frozenset({DType.I8}))(node, site)


def _pack_factors(attributes: QuantizedSums, bias: Array | None) -> Array:
    """[output slice, one of `_ROWS`, lane], zero-padded."""
    count = len(attributes.multipliers)
    packed = np.zeros((_ROWS, -(-count // 4) * 4), np.int32)
    if bias is not None:
        packed[0, :count] = bias.reshape(-1)
    packed[1:, :count] = attributes.factors
    return np.asarray(packed.reshape(_ROWS, -1, 4).transpose(1, 0, 2))
