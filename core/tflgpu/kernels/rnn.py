"""RNN and the sequence RNNs: a cell of one gate that goes through time (`kernels/cell_loop.py`)."""

from __future__ import annotations

from functools import partial

from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.cell_loop import run_directions
from tflgpu.kernels.recurrent import not_constant, not_shared, slices_of
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.cell_operands import CellOperands
from tflgpu.ops.rnn import BACKWARD, FORWARD, ONE_WAY

_ROOMS = 2  # vectors that a step keeps: the hidden state, and the sums


def _accepts(ways: tuple[CellOperands, ...], node: Node, site: Site) -> str | None:
    weights = [i for way in ways for i in (*way.weights, *way.recurrent, *way.biases)]
    weights += [i for way in ways for i in way.second_weights]
    slices = max(slices_of(node.input(way.states[0]).shape[1]) for way in ways)
    return (
        takes(FLOATS)(node, site)
        or not_constant(node, weights, {})
        or not_shared(node.op, _ROOMS * slices, site)
    )


def _through_time(op: str, *ways: CellOperands) -> KernelRule:
    return KernelRule(
        op,
        "through time",
        partial(run_directions, ways=ways),
        partial(_accepts, ways),
        fuses=len(ways) == 1,
        keeps_state=True,
    )


RULES = (
    _through_time("RNN", ONE_WAY),
    _through_time("UNIDIRECTIONAL_SEQUENCE_RNN", ONE_WAY),
    _through_time("BIDIRECTIONAL_SEQUENCE_RNN", FORWARD, BACKWARD),
)
