"""ROTARY_EMBEDDING and GATED_SILU: one invocation for each four numbers of the result."""

from __future__ import annotations

import math

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import channel_of
from tflgpu.kernels.unary import logistic
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.rotary import GATED, ROTARY


def _shifted(view: ReadView, outer: Expr, slice_: Expr, by: int, width: int) -> Expr:
    """Four channels from ``by`` behind those of a slice of a result with ``width`` channels, around
    the end of the operand's; padding lanes are some channel that exists."""
    k = view.k
    if by % 4 == 0 and view.channels % 4 == 0:
        return view.load(outer, k.let((slice_ + by // 4) % view.slices, "behind"))
    lanes = []
    for lane in range(4):
        if lane >= width:
            lanes.append(k.const(0, view.vector_type.with_width(1)))
            continue
        channel = channel_of(k, slice_, lane, width)
        lanes.append(k.let(view.load_lane(outer, (channel + by) % view.channels), "lane"))
    return k.vec(lanes)


def _f32(k: Builder, value: Expr) -> Expr:
    return k.let(k.cast(value, Scalar.F32), "x")


def _rotary(low: Lowering) -> None:
    shape, attributes = low.node.input(0).shape, low.attrs
    half = shape[-1] // 2
    k = low.kernel("rotary")
    source, at = low.read(k, 0), low.read(k, 1)
    rates = attributes.rates(shape[-1])
    padded = np.zeros(source.slices * 4, np.float32)
    padded[: rates.size] = rates
    table = low.weights(k, padded, "rates", scalar=Scalar.F32)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        behind = math.prod(shape[attributes.axis + 1 : -1])
        tokens = shape[attributes.axis]
        place = k.let(outer // behind % tokens, "token")
        if attributes.each_item:
            item = (
                outer // math.prod(shape[1:-1]) if len(shape) > 2 and attributes.axis else k.i32(0)
            )
            place = k.let(item * tokens + place, "place")
        position = k.cast(at.load_flat(place), Scalar.F32)
        angle = k.let(k.splat(position, 4) * k.load(table, slice_), "angle")
        x = _f32(k, source.load(outer, slice_))
        other = _f32(k, _shifted(source, outer, slice_, half, shape[-1]))
        channels = k.vec([slice_ * 4 + lane for lane in range(4)])
        is_first = channels < k.splat(k.i32(half), 4)
        other = k.let(k.select(is_first, -other, other), "other")
        turned = x * k.call("cos", angle) + other * k.call("sin", angle)
        out.store(outer, slice_, turned)


def _gated(low: Lowering) -> None:
    k = low.kernel("gated_silu")
    first = low.read(k, 0)
    second = None if low.attrs.halves else low.read(k, 1)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        width = low.node.outputs[0].shape[-1]
        if second is not None:
            gate, up = first.load(outer, slice_), second.load(outer, slice_)
        else:
            gate = _shifted(first, outer, slice_, 0, width)
            up = _shifted(first, outer, slice_, width, width)
        gate, up = _f32(k, gate), _f32(k, up)
        out.store(outer, slice_, gate * logistic(k, gate) * up)


_floats = takes(FLOATS)


def _accepts_rotary(node: Node, site: Site) -> str | None:
    at = node.input(1)
    if at.dtype not in FLOATS | {DType.I32}:
        return (
            f"{ROTARY}: positions {at.name} are {at.dtype.value}; its kernel takes i32 and floats"
        )
    if at.dtype is not DType.I32 and site.precision.value == "f16":
        return f"{ROTARY}: f16 does not hold the positions {at.name} beyond 2048"
    return takes(FLOATS, 1)(node, site)


def _accepts_gated(node: Node, site: Site) -> str | None:
    if not node.input(0).shape:
        return f"{GATED}: of a single number"
    return _floats(node, site)


RULES = (
    KernelRule(ROTARY, "pairs", _rotary, _accepts_rotary, reads_once=True),
    KernelRule(GATED, "elements", _gated, _accepts_gated, reads_once=True),
)
