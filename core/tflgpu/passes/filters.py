"""Nodes with a constant filter, seen by their channels: what passes that fold into weights share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.lowering.precision import Precision
from tflgpu.ops.facets import Filter
from tflgpu.passes.context import PassContext
from tflgpu.passes.match import f32

if TYPE_CHECKING:
    from tflgpu.lowering.rule import Site

#: Of the size of weights, by rounding them to f16: twice the most that is lost where none is too small for it.
_MAY_LOSE = 2.0**-10
_MOST = float(np.finfo(np.float16).max)


def filter_of(node: Node | None, context: PassContext) -> Filter | None:
    """How a node filters, where its filter and bias are f32 constants without quantization."""
    kind = context.filter_of(node)
    if node is None or kind is None:
        return None
    bias = node.optional_input(kind.bias)
    ours = _is_f32_constant(node.input(kind.weights)) and (bias is None or _is_f32_constant(bias))
    return kind if ours else None


def _is_f32_constant(value: Value) -> bool:
    return value.is_const and value.dtype is DType.F32 and value.quant is None


def bias_of(node: Node, kind: Filter) -> Array:
    """The bias in f64, zeros where it is absent."""
    value = node.optional_input(kind.bias)
    if value is None or value.data is None:
        return np.zeros(node.const(kind.weights).shape[kind.out], np.float64)
    return value.data.astype(np.float64)


def along(axis: int, rank: int, numbers: Array) -> Array:
    """A number per channel, shaped to broadcast along one axis of a filter."""
    shape = [1] * rank
    shape[axis] = -1
    return numbers.reshape(shape)


def worth_storing(context: PassContext, weights: Array, scale: Array, scaled: Array) -> bool:
    """Whether weights times scales lose no more by being stored than the two do each by itself.

    The product may leave the range of f16, where neither of them does. What a slice along any axis loses
    counts against all of the slice, since weights near 0 say little.
    """
    site = context.site
    if site is None or site.precision is Precision.F32 or not _in_f16(weights):
        return True
    if not _in_f16(scaled):
        return False
    kept = _stored(scaled, site) - scaled
    apart = _stored(weights, site) * _stored(scale, site) - scaled
    return not np.isfinite(apart).all() or all(
        bool((lost <= np.maximum(_MAY_LOSE * whole, 2 * before)).all())
        for lost, before, whole in zip(_sizes(kept), _sizes(apart), _sizes(scaled), strict=True)
    )


def _in_f16(data: Array) -> bool:
    return bool((np.abs(data) <= _MOST).all())


def _stored(data: Array, site: Site) -> Array:
    kind = site.precision.weight_storage(data, site.caps)
    with np.errstate(over="ignore", under="ignore"):
        return data.astype(kind.numpy).astype(np.float64)


def _sizes(data: Array) -> Iterator[Array]:
    """Of the slices along each axis, the root of the sum of squares."""
    for axis in range(data.ndim):
        others = tuple(a for a in range(data.ndim) if a != axis)
        yield np.asarray(np.sqrt(np.square(data).sum(others)))


def set_filter(
    rewriter: Rewriter, node: Node, kind: Filter, weights: Array | None, bias: Array | None
) -> bool:
    """Give a node new weights or a new bias (None = keep).

    False, and no edit, where a number would not be finite in f32.
    """
    with np.errstate(over="ignore"):
        new = [
            (index, value, f32(data))
            for index, value, data in (
                (kind.weights, node.optional_input(kind.weights), weights),
                (kind.bias, node.optional_input(kind.bias), bias),
            )
            if data is not None
        ]
    if not all(np.isfinite(data).all() for _, _, data in new):
        return False
    for index, value, data in new:
        name = node.outputs[0].name + "/bias" if value is None else value.name
        rewriter.set_input(node, index, rewriter.const(data, name))
    return True
