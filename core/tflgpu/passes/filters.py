"""Nodes with a constant filter, seen by channels: shared by passes that fold into weights."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.weights import spoiled_by_f16
from tflgpu.ops.facets import Filter
from tflgpu.passes.base import PassContext


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


def set_filter(
    rewriter: Rewriter,
    node: Node,
    kind: Filter,
    weights: Array | None,
    bias: Array | None,
    context: PassContext,
) -> bool:
    """Give a node new weights or a new bias (None = keep).

    False, and no edit, where a number would not be finite in f32; or where weights may be stored or
    multiplied in f16, which holds those of a channel less well than before.
    """
    with np.errstate(over="ignore"):
        new = [
            (index, value, np.asarray(data, np.float32, order="C"))
            for index, value, data in (
                (kind.weights, node.optional_input(kind.weights), weights),
                (kind.bias, node.optional_input(kind.bias), bias),
            )
            if data is not None
        ]
    if not all(np.isfinite(data).all() for _, _, data in new):
        return False
    halves = context.site is not None and context.site.precision is not Precision.F32
    if weights is not None and halves and not _as_well_in_f16(node, kind, weights):
        return False
    for index, value, data in new:
        name = node.outputs[0].name + "/bias" if value is None else value.name
        rewriter.set_input(node, index, rewriter.const(data, name))
    return True


def _as_well_in_f16(node: Node, kind: Filter, weights: Array) -> bool:
    """Whether f16 holds the weights as well after they were scaled; judged by the largest of every
    slice."""
    before = node.const(kind.weights)
    for axis in range(weights.ndim):
        others = tuple(a for a in range(weights.ndim) if a != axis)
        was, now = (spoiled_by_f16(np.abs(data).max(others)) for data in (before, weights))
        if (now & ~was).any():
            return False
    return True
