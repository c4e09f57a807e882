"""LSTM with the full kernel, RNN and the sequence ones: a cell that goes through time, on real
numbers or, of an LSTM, on stored ones. LSTM with the basic kernel: all gates as one product, then
the cell, element by element.

The basic cell reads the sums of gates from a temporary in f32; the node's own copies of them, and
of the joined input, are results that hardly any model reads, but they are results.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.cell_loop import NodeCell, run_directions
from tflgpu.kernels.recurrent import (
    InputProduct,
    input_sums,
    logistic,
    not_constant,
    not_shared,
    side_by_side,
)
from tflgpu.kernels.stored_cell_loop import run_stored_cell, why_not_stored
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops import rnn
from tflgpu.ops.base import Activation
from tflgpu.ops.basic_lstm import BIASES, CELLS, HIDDEN, INPUT, WEIGHTS, BasicLstm
from tflgpu.ops.cell_operands import LSTM, CellOperands
from tflgpu.ops.lstm import BACKWARD, FORWARD
from tflgpu.ops.stored_cell import StoredCell

_OUTPUT, _STATE, _JOINED, _GATES = range(4)


def build_basic(low: Lowering) -> None:
    """Three dispatches: the sums of gates, the cell, and the joined input."""
    node, inputs = low.node, low.node.input(INPUT).shape[1]
    matrix = np.asarray(node.const(WEIGHTS))
    products = [
        InputProduct(INPUT, [matrix[:, :inputs]]),
        InputProduct(HIDDEN, [matrix[:, inputs:]]),
    ]
    _build_cell(low, input_sums(low, products, [np.asarray(node.const(BIASES))], result=_GATES))
    _build_joined(low)


def _build_cell(low: Lowering, gates: Temp) -> None:
    _, units = low.node.input(HIDDEN).shape
    k = low.kernel("lstm_cell")
    sums, cells = low.read_temp(k, gates, "gates"), low.read(k, CELLS)
    output, state = low.write(k, _OUTPUT), low.write(k, _STATE)
    with each_vector(low, k, state) as (row, slice_):
        admit, content, forget, show = (
            k.let(_gate(k, sums, row, slice_, gate, units), "gate") for gate in range(4)
        )
        old = k.cast(cells.load(row, slice_), Scalar.F32)
        new = k.let(
            logistic(k, admit) * k.call("tanh", content) + logistic(k, forget) * old, "cell"
        )
        state.store(row, slice_, new)
        output.store(row, slice_, logistic(k, show) * k.call("tanh", new))


def _gate(k: Builder, sums: ReadView, row: Expr, slice_: Expr, gate: int, units: int) -> Expr:
    """Four sums of one gate."""
    if units % 4 == 0:
        return sums.load(row, slice_ + gate * (units // 4))
    lanes = [k.min(slice_ * 4 + lane, units - 1) + gate * units for lane in range(4)]
    return k.vec([sums.load_lane(row, lane) for lane in lanes])


def _build_joined(low: Lowering) -> None:
    k = low.kernel("lstm_joined")
    source, hidden, out = low.read(k, INPUT), low.read(k, HIDDEN), low.write(k, _JOINED)
    with each_vector(low, k, out) as (row, slice_):
        out.store(row, slice_, side_by_side(k, source, hidden, row, slice_))


def _accepts_basic(node: Node, site: Site) -> str | None:
    if not isinstance(node.attrs, BasicLstm):
        return "LSTM: only the basic kernel runs on the GPU; the full one keeps state on the CPU"
    for index, what in ((WEIGHTS, "weights"), (BIASES, "biases")):
        if not node.input(index).is_const:
            return f"LSTM: the {what} are not constants"
    return takes(FLOATS)(node, site)


def _accepts(ways: tuple[CellOperands, ...], node: Node, site: Site) -> str | None:
    if isinstance(node.attrs, BasicLstm):
        return "LSTM: the rule is for the full kernel"
    second = [i for way in ways for i in way.second_weights]
    names = dict.fromkeys(second, "weights of the second input")
    cells = (_why_not(node, places, site) for places in ways)
    return (
        takes(FLOATS)(node, site)
        or not_constant(node, second, names)
        or next(filter(None, cells), None)
    )


def _accepts_stored(node: Node, site: Site) -> str | None:
    cell = None if isinstance(node.attrs, BasicLstm) else node.attrs.cell
    if not isinstance(cell, StoredCell):
        return f"{node.op}: the rule is for whole numbers"
    if cell.hidden is None:
        return f"{node.op}: gates of 8 bits are computed on the CPU"
    if any(gate is not None and gate.norm is not None for gate in cell.gates):
        return f"{node.op}: a layer norm of whole numbers needs sums of 64 bits"
    return _why_not(node, LSTM, site) or why_not_stored(node)


def _why_not(node: Node, places: CellOperands, site: Site) -> str | None:
    """Why a cell cannot run on a device, None where it can."""
    reason = not_constant(node, places.constants, places.names)
    if reason is not None:
        return reason
    recurrent = [node.optional_input(i) for i in places.recurrent]
    diagonal = any(v is not None and len(v.shape) == 1 for v in recurrent)
    if diagonal and node.attrs.cell.activation is not Activation.TANH:
        return f"{node.op}: an infinity would spread from a diagonal of the recurrent weights"
    for index in places.states:
        state = node.input(index)
        if len(state.shape) != 2:
            return f"{node.op}: state {state.name} of shape {list(state.shape)} is no matrix"
    return not_shared(node.op, NodeCell.of(node, places).slices, site)


def _through_time(op: str, *ways: CellOperands, fuses: bool = False) -> KernelRule:
    """That of an LSTM binds eight buffers, which is all that some devices have, and so may that of
    two directions: no chain may bring more."""
    return KernelRule(
        op,
        "through time",
        partial(run_directions, ways=ways),
        partial(_accepts, ways),
        fuses=fuses,
        keeps_state=True,
    )


RULES = (
    *(
        KernelRule(
            op,
            "through time, on whole numbers",
            run_stored_cell,
            _accepts_stored,
            fuses=False,
            keeps_state=True,
        )
        for op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
    ),
    KernelRule("LSTM", "basic", build_basic, _accepts_basic),
    _through_time("LSTM", LSTM),
    _through_time("UNIDIRECTIONAL_SEQUENCE_LSTM", LSTM),
    _through_time("BIDIRECTIONAL_SEQUENCE_LSTM", FORWARD, BACKWARD),
    _through_time("RNN", rnn.ONE_WAY, fuses=True),
    _through_time("UNIDIRECTIONAL_SEQUENCE_RNN", rnn.ONE_WAY, fuses=True),
    _through_time("BIDIRECTIONAL_SEQUENCE_RNN", rnn.FORWARD, rnn.BACKWARD),
)
