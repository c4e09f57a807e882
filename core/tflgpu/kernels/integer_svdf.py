"""SVDF on whole numbers: as `kernels/svdf.py`, in i32, bit for bit as TFLite's reference kernel."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.fixed_point import times
from tflgpu.kernels.integer_sums import input_sums, pack_factors
from tflgpu.kernels.recurrent import not_constant, pack_vectors
from tflgpu.kernels.svdf import NAMES, keep_state, newest
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.svdf import BIAS, FEATURES, OP, STATE, TIMES, IntegerSvdf

_WORKGROUP = 64


def _build(low: Lowering) -> None:
    attributes: IntegerSvdf = low.attrs
    matrix = np.asarray(low.node.const(FEATURES))
    factors = pack_factors([_offsets(low.node)], [attributes.features])
    features = input_sums(low, 0, [matrix], factors, grows=attributes.features.left > 0)
    _output(low, features)
    keep_state(low, features)


def _offsets(node: Node) -> Array:
    """What the input's zero point adds to the sums of features."""
    weights = node.const(FEATURES).astype(np.int64)
    return np.asarray(-node.attrs.input_zero * weights.sum(axis=1))


def _output(low: Lowering, features: Temp) -> None:
    """Four units an invocation."""
    node, attributes = low.node, low.attrs
    batch, units = node.outputs[0].shape
    taps = attributes.rank * node.input(TIMES).shape[1]
    k = low.kernel("integer_svdf_output", (_WORKGROUP, 1, 1))
    made = low.read_temp(k, features, "features")
    old = low.read_value(k, node.input(STATE), "old")
    weights = low.weights(k, np.asarray(node.const(TIMES)), "times", width=1, scalar=Scalar.I32)
    out = low.write(k)
    slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
    guard(k, slice_ < out.slices)
    totals = []
    for lane in range(4):
        first = k.let(k.min(slice_ * 4 + lane, units - 1) * taps, "first")
        total = k.var(k.i32(0), "total")
        with k.loop(0, taps, name="i") as i:
            at = k.let(first + i, "at")
            state = newest(k, old, made, row, at, node.input(TIMES).shape[1])
            k.add_to(total, state * k.load(weights, at))
        totals.append(total)
    value = k.vec(totals)
    if node.optional_input(BIAS) is not None:
        packed = pack_vectors([np.asarray(node.const(BIAS)).reshape(-1)], np.int32)
        value = value + k.load(low.weights(k, packed, "bias", scalar=Scalar.I32), slice_)
    stored = times(k, k.let(value, "sum"), attributes.result) + attributes.output_zero
    out.store(row, slice_, k.clamp(stored, -128, 127))
    low.dispatch(k, (out.slices, batch, 1))


def _accepts(node: Node, site: Site) -> str | None:
    attributes = node.attrs
    if not isinstance(attributes, IntegerSvdf):
        return f"{OP}: the rule is for whole numbers"
    reason = not_constant(node, (FEATURES, TIMES, BIAS), NAMES)
    if reason is not None:
        return reason
    most = np.abs(node.const(FEATURES).astype(np.int64)).sum(axis=1) * 128
    largest = int((most + np.abs(_offsets(node))).max())
    if largest << attributes.features.left >= 1 << 31 or attributes.result.left:
        return f"{OP}: its sums may need more than 32 bits"
    return None


RULES = (KernelRule(OP, "on whole numbers", _build, _accepts, keeps_state=True),)
