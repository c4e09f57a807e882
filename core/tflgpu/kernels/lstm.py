"""LSTM with the basic kernel: all gates as one product, then the cell, element by element.

The cell reads the sums of gates from a temporary in f32; the node's own copies of them, and of
the joined input, are results that hardly any model reads, but they are results.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.gemm import pack_bias, pack_weights
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.ops.lstm import BasicLstm

_WORKGROUP = 64
_INPUT, _HIDDEN, _WEIGHTS, _BIASES, _CELLS = range(5)
_OUTPUT, _STATE, _JOINED, _GATES = range(4)


def build_lstm(low: Lowering) -> None:
    """Three dispatches: the sums of gates, the cell, and the joined input."""
    node = low.node
    batch, units = node.input(_HIDDEN).shape
    gates = low.temp((batch, 4 * units), Scalar.F32)
    _build_gates(low, gates)
    _build_cell(low, gates)
    _build_joined(low)


def _build_gates(low: Lowering, gates: Temp) -> None:
    node = low.node
    inputs, units = node.input(_INPUT).shape[1], node.input(_HIDDEN).shape[1]
    matrix = np.asarray(node.const(_WEIGHTS)).reshape(4 * units, 1, 1, inputs + units)
    slices = units  # of the 4 * units sums
    k = low.kernel("lstm_gates", (_WORKGROUP, 1, 1))
    parts = []
    for index, columns in ((_INPUT, slice(0, inputs)), (_HIDDEN, slice(inputs, None))):
        view = low.read(k, index)
        parts.append((view, low.weights(k, pack_weights(matrix[..., columns]))))
    bias = low.weights(k, pack_bias(node.const(_BIASES), 4 * units), "bias", scalar=Scalar.F32)
    kept, result = low.write_temp(k, gates), low.write(k, _GATES)
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < slices)
    total = k.var(k.load(bias, column), "acc")
    for view, weights in parts:
        with k.loop(0, view.slices, name="q") as q:
            value = k.let(k.cast(view.load(row, q), Scalar.F32), "x")
            base = k.let(q * (4 * slices) + column, "w0")
            for lane in range(4):
                weight = k.load(weights, base + lane * slices, Scalar.F32)
                k.fma_to(total, value.lane(lane), weight)
    kept.store(row, column, total)
    result.store(row, column, total)
    low.dispatch(k, (slices, node.input(_INPUT).shape[0], 1))


def _build_cell(low: Lowering, gates: Temp) -> None:
    batch, units = low.node.input(_HIDDEN).shape
    slices = -(-units // 4)
    k = low.kernel("lstm_cell", (_WORKGROUP, 1, 1))
    sums, cells = low.read_temp(k, gates, "gates"), low.read(k, _CELLS)
    output, state = low.write(k, _OUTPUT), low.write(k, _STATE)
    slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
    guard(k, slice_ < slices)
    admit, content, forget, show = (
        k.let(_gate(k, sums, row, slice_, gate, units), "gate") for gate in range(4)
    )
    old = k.cast(cells.load(row, slice_), Scalar.F32)
    new = k.let(_sigmoid(k, admit) * k.call("tanh", content) + _sigmoid(k, forget) * old, "cell")
    state.store(row, slice_, new)
    output.store(row, slice_, _sigmoid(k, show) * k.call("tanh", new))
    low.dispatch(k, (slices, batch, 1))


def _gate(k: Builder, sums: ReadView, row: Expr, slice_: Expr, gate: int, units: int) -> Expr:
    """Four sums of one gate."""
    if units % 4 == 0:
        return sums.load(row, slice_ + gate * (units // 4))
    lanes = [k.min(slice_ * 4 + lane, units - 1) + gate * units for lane in range(4)]
    return k.vec([sums.load_lane(row, lane) for lane in lanes])


def _sigmoid(k: Builder, x: Expr) -> Expr:
    return k.f32(1.0, 4) / (k.call("exp", -x) + 1.0)


def _build_joined(low: Lowering) -> None:
    node = low.node
    batch, inputs = node.input(_INPUT).shape
    k = low.kernel("lstm_joined", (_WORKGROUP, 1, 1))
    source, hidden, out = low.read(k, _INPUT), low.read(k, _HIDDEN), low.write(k, _JOINED)
    slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
    guard(k, slice_ < out.slices)
    lanes = []
    for lane in range(4):
        channel = k.let(slice_ * 4 + lane, "channel")
        first = source.load_lane(row, k.min(channel, inputs - 1))
        second = hidden.load_lane(row, k.clamp(channel - inputs, 0, hidden.channels - 1))
        lanes.append(k.select(channel < inputs, first, second))
    out.store(row, slice_, k.vec(lanes))
    low.dispatch(k, (out.slices, batch, 1))


def _accepts(node: Node, site: Site) -> str | None:
    if not isinstance(node.attrs, BasicLstm):
        return "LSTM: only the basic kernel runs on the GPU; the full one keeps state on the CPU"
    for index, what in ((_WEIGHTS, "weights"), (_BIASES, "biases")):
        if not node.input(index).is_const:
            return f"LSTM: the {what} are not constants"
    return takes(FLOATS)(node, site)


RULES = (KernelRule("LSTM", "basic", build_lstm, _accepts),)
