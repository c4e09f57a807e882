"""A tensor times itself becomes SQUARE, which reads it once.

MUL(x, x)          SQUARE(x)
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import NoAttrs
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Rewrite a product of a value with itself."""
    if node.input(0) is node.input(1) and context.is_linear(node) and is_plain(node):
        rewriter.replace([node], "SQUARE", NoAttrs(), [node.input(0)])
        return True
    return False


PASS = Pass("square", per_node(_rewrite, "MUL"))
