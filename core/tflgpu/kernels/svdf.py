"""SVDF: features of the input, then the outputs and, beside them, the state that moves on a step.
On stored numbers in i32, bit for bit as TFLite's reference kernel."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.fixed_point import times
from tflgpu.kernels.recurrent import Factors, InputProduct, input_sums, not_constant, pack_vectors
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.fixed_point import I8
from tflgpu.ops.svdf import BIAS, FEATURES, INPUT, OP, STATE, TIMES, StoredSvdf

_NAMES = dict(enumerate(("input", "weights of features", "weights of time", "bias", "state")))


def _build(low: Lowering) -> None:
    stored, matrix = low.attrs.stored, np.asarray(low.node.const(FEATURES))
    factors = None if stored is None else _factors(matrix, stored)
    features = input_sums(low, [InputProduct(INPUT, [matrix])], factors=factors)
    _output(low, features)
    _keep_state(low, features)


def _factors(matrix: Array, stored: StoredSvdf) -> Factors:
    """Factors for the sums of features."""
    offsets = np.asarray(-stored.input_zero * matrix.astype(np.int64).sum(axis=1))
    return Factors([offsets], [stored.features])


def _newest(k: Builder, old: ReadView, features: ReadView, row: Expr, at: Expr, steps: int) -> Expr:
    """Element ``at`` of a row of the new state: what is a step newer, or a feature."""
    filter_ = k.let(at // steps, "filter")
    feature = features.load_lane(row, filter_)
    if steps == 1:
        return feature
    newer = k.cast(old.load_lane(row, k.min(at + 1, old.channels - 1)), feature.type.scalar)
    return k.select((at - filter_ * steps).eq(steps - 1), feature, newer)


def _output(low: Lowering, features: Temp) -> None:
    """Four units an invocation."""
    node, stored = low.node, low.attrs.stored
    _, units = node.outputs[0].shape
    steps = node.input(TIMES).shape[1]
    taps = low.attrs.rank * steps
    name, scalar = "svdf_output", Scalar.F32
    if stored is not None:
        name, scalar = "integer_svdf_output", Scalar.I32
    k = low.kernel(name)
    made = low.read_temp(k, features, "features")
    old = low.read_value(k, node.input(STATE), "old")
    weights = low.weights(k, np.asarray(node.const(TIMES)), "times", width=1, scalar=scalar)
    out = low.write(k)
    with each_vector(low, k, out) as (row, slice_):
        totals = []
        for lane in range(4):
            first = k.let(k.min(slice_ * 4 + lane, units - 1) * taps, "first")
            total = k.var(k.f32(0.0) if stored is None else k.i32(0), "total")
            with k.loop(0, taps, name="i") as i:
                at = k.let(first + i, "at")
                state, weight = _newest(k, old, made, row, at, steps), k.load(weights, at)
                if stored is None:
                    k.fma_to(total, state, weight)
                else:
                    k.add_to(total, state * weight)
            totals.append(total)
        value = k.vec(totals)
        if node.optional_input(BIAS) is not None:
            packed = pack_vectors([np.asarray(node.const(BIAS)).reshape(-1)], scalar.numpy)
            value = value + k.load(low.weights(k, packed, "bias", scalar=scalar), slice_)
        value = k.let(value, "sum")
        if stored is None:
            value = activate(k, low.attrs.activation, value)
        else:
            value = k.clamp(times(k, value, stored.result) + stored.output_zero, *I8)
        out.store(row, slice_, value)


def _keep_state(low: Lowering, features: Temp) -> None:
    """One dispatch: the new state, of features [batch, filters] in f32 or i32."""
    node = low.node
    steps = node.input(TIMES).shape[1]
    k = low.kernel("svdf_state")
    made = low.read_temp(k, features, "features")
    old = low.read_value(k, node.input(STATE), "old")
    new = low.new_state(k, STATE)
    with each_vector(low, k, new) as (row, slice_):
        places = [k.let(k.min(slice_ * 4 + lane, new.channels - 1), "at") for lane in range(4)]
        new.store(row, slice_, k.vec([_newest(k, old, made, row, at, steps) for at in places]))


def _accepts(node: Node, site: Site) -> str | None:
    return takes(FLOATS)(node, site) or not_constant(node, (FEATURES, TIMES, BIAS), _NAMES)


def _accepts_stored(node: Node, site: Site) -> str | None:
    stored = node.attrs.stored
    if stored is None:
        return f"{OP}: the rule is for whole numbers"
    reason = not_constant(node, (FEATURES, TIMES, BIAS), _NAMES)
    if reason is not None:
        return reason
    matrix = node.const(FEATURES)
    if stored.result.left or _factors(matrix, stored).overflow([matrix]):
        return f"{OP}: its sums may need more than 32 bits"
    return None


RULES = (
    KernelRule(OP, "on whole numbers", _build, _accepts_stored, keeps_state=True),
    KernelRule(OP, "features first", _build, _accepts, keeps_state=True),
)
