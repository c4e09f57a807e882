"""BIDIRECTIONAL_SEQUENCE_LSTM: the cells of `kernels/sequence_lstm.py`, one for each direction."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.both_ways import Directions
from tflgpu.kernels.recurrent import Product, not_constant
from tflgpu.kernels.sequence_lstm import run_cell, why_not
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.bidirectional_lstm import OP, SECOND, SECOND_WEIGHTS, WAYS, BothLstm


def _build(low: Lowering) -> None:
    attributes: BothLstm = low.attrs
    node = low.node
    ways = Directions(low, [node.input(p.output_state).shape[1] for p in WAYS])
    for way, (places, first) in enumerate(zip(WAYS, SECOND_WEIGHTS, strict=True)):
        extra = [node.optional_input(first + gate) for gate in range(4)]
        matrices = [np.asarray(v.data) for v in extra if v is not None]
        products = (Product(SECOND, matrices),) if matrices else ()
        run_cell(low, places, attributes.cell, ways.steps(way), ways.write(way), products)
    ways.merge()


def _accepts(node: Node, site: Site) -> str | None:
    weights = [first + gate for first in SECOND_WEIGHTS for gate in range(4)]
    reasons = (
        takes(FLOATS)(node, site),
        not_constant(node, weights, ["weights of the second input"] * len(node.inputs)),
        *(why_not(node, places, site) for places in WAYS),
    )
    return next((reason for reason in reasons if reason is not None), None)


RULES = (KernelRule(OP, "through time", _build, _accepts, fuses=False, keeps_state=True),)
