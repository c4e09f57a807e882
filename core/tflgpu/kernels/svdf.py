"""SVDF: features of the input, then the outputs and, beside them, the state that moves on a step."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.activation import activate
from tflgpu.kernels.recurrent import Product, input_sums, not_constant, pack_vectors
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.ops.svdf import BIAS, FEATURES, INPUT, OP, STATE, TIMES

_WORKGROUP = 64
NAMES = ("input", "weights of features", "weights of time", "bias", "state")


def _build(low: Lowering) -> None:
    node = low.node
    features = input_sums(low, [Product(INPUT, [np.asarray(node.const(FEATURES))])], None)
    _output(low, features)
    keep_state(low, features)


def newest(k: Builder, old: ReadView, features: ReadView, row: Expr, at: Expr, steps: int) -> Expr:
    """Element ``at`` of a row of the new state: what is a step newer, or a feature."""
    filter_ = k.let(at // steps, "filter")
    feature = features.load_lane(row, filter_)
    if steps == 1:
        return feature
    newer = k.cast(old.load_lane(row, k.min(at + 1, old.channels - 1)), feature.type.scalar)
    return k.select((at - filter_ * steps).eq(steps - 1), feature, newer)


def _output(low: Lowering, features: Temp) -> None:
    """Four units an invocation."""
    node, rank = low.node, low.attrs.rank
    batch, units = node.outputs[0].shape
    steps = node.input(TIMES).shape[1]
    k = low.kernel("svdf_output", (_WORKGROUP, 1, 1))
    made = low.read_temp(k, features, "features")
    old = low.read_value(k, node.input(STATE), "old")
    weights = low.weights(k, np.asarray(node.const(TIMES)), "times", width=1, scalar=Scalar.F32)
    out = low.write(k)
    slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
    guard(k, slice_ < out.slices)
    totals = []
    for lane in range(4):
        first = k.let(k.min(slice_ * 4 + lane, units - 1) * (rank * steps), "first")
        total = k.var(k.f32(0.0), "total")
        with k.loop(0, rank * steps, name="i") as i:
            at = k.let(first + i, "at")
            k.fma_to(total, newest(k, old, made, row, at, steps), k.load(weights, at))
        totals.append(total)
    value = k.vec(totals)
    bias = node.optional_input(BIAS)
    if bias is not None:
        packed = pack_vectors([np.asarray(node.const(BIAS)).reshape(-1)])
        value = value + k.load(low.weights(k, packed, "bias", scalar=Scalar.F32), slice_)
    out.store(row, slice_, activate(k, low.attrs.activation, k.let(value, "sum")))
    low.dispatch(k, (out.slices, batch, 1))


def keep_state(low: Lowering, features: Temp) -> None:
    """One dispatch: the new state, of features [batch, filters] in f32 or i32."""
    node = low.node
    batch = node.input(INPUT).shape[0]
    steps = node.input(TIMES).shape[1]
    k = low.kernel("svdf_state", (_WORKGROUP, 1, 1))
    made = low.read_temp(k, features, "features")
    old = low.read_value(k, node.input(STATE), "old")
    new = low.new_state(k, STATE)
    slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
    guard(k, slice_ < new.slices)
    places = [k.let(k.min(slice_ * 4 + lane, new.channels - 1), "at") for lane in range(4)]
    new.store(row, slice_, k.vec([newest(k, old, made, row, at, steps) for at in places]))
    low.dispatch(k, (new.slices, batch, 1))


def _accepts(node: Node, site: Site) -> str | None:
    return takes(FLOATS)(node, site) or not_constant(node, (FEATURES, TIMES, BIAS), NAMES)


RULES = (KernelRule(OP, "features first", _build, _accepts, keeps_state=True),)
