"""Two TRANSPOSEs in a row become one.

x -> TRANSPOSE p -> TRANSPOSE q -> y          x -> TRANSPOSE p[q] -> y
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.transpose import order_of
from tflgpu.passes.base import Pass, per_node
from tflgpu.passes.context import PassContext


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Merge a pair; the first stays where others read its result."""
    first = rewriter.producer(node.input(0), "TRANSPOSE")
    if first is None:
        return False
    inner, outer = order_of(first), order_of(node)
    if inner is None or outer is None:
        return False
    if rewriter.sole_use(first.outputs[0]) is node:
        node.origins = merged_origins(first, node)
    order = np.array([inner[axis] for axis in outer], np.int32)
    rewriter.set_input(node, 0, first.input(0))
    rewriter.set_input(node, 1, rewriter.const(order, "perm"))
    return True


PASS = Pass("merge_transposes", per_node(_rewrite, "TRANSPOSE"))
