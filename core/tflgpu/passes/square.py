"""A tensor times itself becomes SQUARE, which reads it once.

MUL(x, x)          SQUARE(x)
"""

from __future__ import annotations

from tflgpu.ir.graph import Graph
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import NoAttrs
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext


def run(graph: Graph, context: PassContext) -> int:
    """Rewrite every one there is."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("MUL"):
        if node.input(0) is node.input(1) and context.is_linear(node) and is_plain(node):
            rewriter.replace([node], "SQUARE", NoAttrs(), [node.input(0)])
            rewriter.count()
    return rewriter.edits


PASS = Pass("square", run)
