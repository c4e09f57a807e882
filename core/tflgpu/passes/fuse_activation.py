"""A clamp (or TANH) moves into the node that makes its operand.

CONV_2D -> RELU6 -> y          CONV_2D {activation=RELU6} -> y
"""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.ir.graph import Graph
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.base import Activation
from tflgpu.passes.base import Pass
from tflgpu.passes.match import ACTIVATED, is_linear, is_plain

_ACTIVATIONS: Mapping[str, Activation] = {
    "RELU": Activation.RELU,
    "RELU6": Activation.RELU6,
    "RELU_N1_TO_1": Activation.RELU_N1_TO_1,
    "TANH": Activation.TANH,
}


def run(graph: Graph) -> int:
    """Fuse every one whose operand nothing else reads."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes(*_ACTIVATIONS):
        maker = rewriter.producer(node.input(0), *ACTIVATED)
        if maker is None or not is_linear(maker) or not (is_plain(maker) and is_plain(node)):
            continue
        if rewriter.sole_use(node.input(0)) is not node:
            continue
        rewriter.evolve(maker, activation=_ACTIVATIONS[node.op])
        rewriter.absorb(maker, node)
        rewriter.count()
    return rewriter.edits


# Last, since what multiplies or adds can be folded into weights only before the activation.
PASS = Pass("fuse_activation", run, phase=30)
