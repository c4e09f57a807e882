"""A clamp (or TANH) moves into the node that makes its operand.

CONV_2D -> RELU6 -> y          CONV_2D {activation=RELU6} -> y
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import Activation
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fuse one whose operand nothing else reads."""
    op = context.op(node)
    if op is None or op.arithmetic.computes is Activation.NONE:
        return False
    maker = rewriter.producer(node.input(0))
    made_by = None if maker is None else context.op(maker)
    if maker is None or made_by is None or not made_by.arithmetic.activation_field:
        return False
    if not context.is_linear(maker) or not (is_plain(maker) and is_plain(node)):
        return False
    if len(maker.outputs) != 1 or rewriter.sole_use(node.input(0)) is not node:
        return False
    rewriter.evolve(maker, **{made_by.arithmetic.activation_field: op.arithmetic.computes})
    rewriter.absorb(maker, node)
    return True


# Last, since what multiplies or adds can be folded into weights only before the activation.
PASS = Pass("fuse_activation", per_node(_rewrite), phase=30)
